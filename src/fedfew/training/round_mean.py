"""The weighted mean of a round's updates, added up a chunk of clients at a time, with no client above its cap."""

from __future__ import annotations

import torch
from torch import Tensor

from fedfew.stack import Tree, WeightedMean, branch, take, tensor
from fedfew.training.client_weights import log_factors


class RoundMean:
    """:meth:`add` updates with their weights, then :meth:`combine` them.

    A share of the weights is known when all clients have replied. So the updates of clients that are above their cap among those
    so far are kept until then: fewer than 1 / cap at a time, since every further client lowers the others' shares.
    """

    def __init__(self, models: int, most: Tensor | None) -> None:
        """most: the largest share of the weights per client [M]; None: no cap."""
        self.most = most
        self.models = models
        self._mean = WeightedMean(models)
        self._clients = torch.zeros(0, dtype=torch.int64)
        self._log_alpha = torch.zeros(0, dtype=torch.float64)
        self._kept: dict[int, Tree] = {}  # by client: its weights and its update

    def add(self, clients: Tensor, log_weights: Tensor, log_whole: Tensor | None, update: Tree) -> None:
        """log_weights ``[C, K]`` and log_whole ``[C]`` are a method's, of the updates ``[C, K or 1, …]`` of these clients."""
        log_weights = log_weights.to("cpu", torch.float64)
        if self.most is None:
            self._mean.add(log_weights, update, log_whole)
            return
        log_alpha = log_weights.logsumexp(1) if log_whole is None else log_whole.to("cpu", torch.float64)
        self._clients = torch.cat([self._clients, clients.cpu()])
        self._log_alpha = torch.cat([self._log_alpha, log_alpha])
        above = torch.isin(clients.cpu(), self._capped())
        if bool(above.any()):
            for row in above.nonzero()[:, 0].tolist():
                one = slice(row, row + 1)
                self._kept[int(clients[row])] = {"log_weights": log_weights[one], "update": take(update, one)}
                if log_whole is not None:
                    self._kept[int(clients[row])]["log_whole"] = log_alpha[one]
            below = (~above).nonzero()[:, 0]
            log_weights, update = log_weights[below], take(update, below)
            log_whole = None if log_whole is None else log_alpha[below]
        if len(log_weights):
            self._mean.add(log_weights, update, log_whole)
        self._release()

    def combine(self) -> WeightedMean:
        """The weighted mean, of all that was added."""
        if self.most is None:
            return self._mean
        self._release()
        factors = dict(zip(self._clients.tolist(), self._factors(), strict=True))
        for client in sorted(self._kept):
            self._add_kept(self._kept.pop(client), factors[client])
        return self._mean

    def _capped(self) -> Tensor:
        """Clients that would have more than their share."""
        return self._clients[self._factors() != 0]

    def _factors(self) -> Tensor:
        assert self.most is not None, "there is no cap"
        return log_factors(self._log_alpha, self.most[self._clients])

    def _release(self) -> None:
        """Add the kept updates of clients that are below their cap now."""
        still = set(self._capped().tolist()) if self._kept else set()
        for client in sorted(set(self._kept) - still):
            self._add_kept(self._kept.pop(client), torch.zeros(()))

    def _add_kept(self, kept: Tree, log_factor: Tensor) -> None:
        log_whole = tensor(kept, "log_whole").cpu() + log_factor if "log_whole" in kept else None
        self._mean.add(tensor(kept, "log_weights").cpu() + log_factor, branch(kept, "update"), log_whole)

    # -- several processes ---------------------------------------------------------------------------------------------------

    def parts(self) -> Tree:
        """What another process needs to :meth:`merge` this with its own."""
        kept: Tree = {str(client): one for client, one in self._kept.items()}
        rows: Tree = {"clients": self._clients, "log_alpha": self._log_alpha}
        return {"mean": self._mean.parts(), "kept": kept, "rows": rows}

    def merge(self, parts: Tree) -> None:
        """Take in what other clients sent."""
        self._mean.merge(branch(parts, "mean"))
        rows = branch(parts, "rows")
        self._clients = torch.cat([self._clients, tensor(rows, "clients").cpu()])
        self._log_alpha = torch.cat([self._log_alpha, tensor(rows, "log_alpha").cpu()])
        for client in branch(parts, "kept"):
            self._kept[int(client)] = branch(branch(parts, "kept"), client)
