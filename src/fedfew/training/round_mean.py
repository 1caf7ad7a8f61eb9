"""The updates of a round combined to one per model: their weighted mean with no client above its cap, or a robust centre."""

from __future__ import annotations

import torch
from torch import Tensor

from fedfew.config import TrainConfig
from fedfew.stack import Tree, branch, take, tensor, tree_map
from fedfew.training import robust
from fedfew.training.client_weights import log_factors
from fedfew.weighted_mean import WeightedMean


class RoundMean:
    """:meth:`add` updates with their weights, a chunk of clients at a time, then :meth:`combine` them.

    A mean is added up as updates come. A share of the weights is known when all clients have replied, so the updates of clients
    that are above their cap among those so far are kept until then: fewer than 1 / cap at a time, since every further client
    lowers the others' shares. A robust rule compares the updates of all clients: all are kept.
    """

    def __init__(
        self, models: int, most: Tensor | None = None, config: TrainConfig | None = None, share: Tensor | None = None
    ) -> None:
        """most: the largest share of the weights per client [M], None: no cap; config: the robust rule, if it has one; share: of
        the samples, per client [M], None: all alike."""
        self.most = most
        self.models = models
        self.share = share
        self.rule = None if config is None or config.aggregator == "mean" else config
        self._mean = WeightedMean(models)
        self._clients = torch.zeros(0, dtype=torch.int64)
        self.log_alpha = torch.zeros(0, dtype=torch.float64)  # of all clients so far, in the order in which they came
        self._log_factors: Tensor | None = None
        self._kept: dict[int, Tree] = {}  # by client: its weights and its update

    def add(self, clients: Tensor, log_weights: Tensor, log_whole: Tensor | None, update: Tree) -> None:
        """log_weights ``[C, K]`` and log_whole ``[C]`` are a method's, of the updates ``[C, K or 1, …]`` of these clients."""
        log_weights = log_weights.to("cpu", torch.float64)
        log_alpha = log_weights.logsumexp(1) if log_whole is None else log_whole.to("cpu", torch.float64)
        self._came(clients.cpu(), log_alpha)
        late = self._waiting()
        waiting = torch.isin(clients.cpu(), late) if len(late) else late
        if len(late) and bool(waiting.any()):
            for row in waiting.nonzero()[:, 0].tolist():
                one = slice(row, row + 1)
                kept: Tree = {"log_weights": log_weights[one], "update": tree_map(torch.clone, take(update, one))}
                self._kept[int(clients[row])] = kept if log_whole is None else kept | {"log_whole": log_alpha[one]}
            added = (~waiting).nonzero()[:, 0]
            log_weights, update = log_weights[added], take(update, added)
            log_whole = None if log_whole is None else log_alpha[added]
        if len(log_weights):
            self._mean.add(log_weights, update, log_whole)
        self._release()

    def combine(self) -> WeightedMean:
        """What all that was added amounts to."""
        if not self._kept:
            return self._mean
        self._release()
        factors = dict(zip(self._clients.tolist(), self.log_factors, strict=True))
        kept = [(self._kept[client], factors[client]) for client in sorted(self._kept)]
        if self.rule is not None:
            return self._centre(self.rule, kept)
        for one, log_factor in kept:
            self._add_kept(one, log_factor)
        self._kept = {}
        return self._mean

    def _centre(self, rule: TrainConfig, kept: list[tuple[Tree, Tensor]]) -> WeightedMean:
        """The robust centre, in place of a mean with the same sums of weights.

        Among clients it goes by sample counts, and by a method's weights only among the models of each client: what it weighs by
        losses, attackers could choose.
        """
        log_weights = torch.cat([tensor(one, "log_weights").cpu() + log_factor for one, log_factor in kept])
        wholes = [tensor(one, "log_whole").cpu() + log_factor for one, log_factor in kept if "log_whole" in one]
        update = tree_map(lambda *parts: torch.cat(parts), *(branch(one, "update") for one, _ in kept))
        clients = torch.tensor(sorted(self._kept))
        samples = torch.zeros(len(clients)) if self.share is None else self.share[clients].log()
        centre = robust.centre(rule, log_weights.log_softmax(1) + samples[:, None], update)
        mean = WeightedMean(self.models)
        whole = torch.cat(wholes) if wholes else log_weights.flatten()
        mean.add(log_weights.logsumexp(0)[None], tree_map(lambda t: t[None], centre), whole)
        return mean

    def _waiting(self) -> Tensor:
        """Clients whose updates cannot be added yet."""
        return self._clients if self.rule is not None else self._clients[self.log_factors != 0]

    @property
    def log_factors(self) -> Tensor:
        """What is added to :attr:`log_alpha` so that no client so far is above its cap."""
        if self._log_factors is None:
            most = None if self.most is None else self.most[self._clients]
            self._log_factors = torch.zeros_like(self.log_alpha) if most is None else log_factors(self.log_alpha, most)
        return self._log_factors

    def _came(self, clients: Tensor, log_alpha: Tensor) -> None:
        self._clients = torch.cat([self._clients, clients])
        self.log_alpha = torch.cat([self.log_alpha, log_alpha])
        self._log_factors = None

    def _release(self) -> None:
        """Add the kept updates of clients that are below their cap now."""
        still = set(self._waiting().tolist()) if self._kept else set()
        for client in sorted(set(self._kept) - still):
            self._add_kept(self._kept.pop(client), torch.zeros(()))

    def _add_kept(self, kept: Tree, log_factor: Tensor) -> None:
        log_whole = tensor(kept, "log_whole").cpu() + log_factor if "log_whole" in kept else None
        self._mean.add(tensor(kept, "log_weights").cpu() + log_factor, branch(kept, "update"), log_whole)

    # -- several processes ---------------------------------------------------------------------------------------------------

    def parts(self) -> Tree:
        """What another process needs to :meth:`merge` this with its own."""
        kept: Tree = {str(client): one for client, one in self._kept.items()}
        rows: Tree = {"models": torch.tensor(self.models), "clients": self._clients, "log_alpha": self.log_alpha}
        return {"mean": self._mean.parts(), "kept": kept, "rows": rows}

    def merge(self, parts: Tree) -> None:
        """Take in what other clients sent."""
        self._mean.merge(branch(parts, "mean"))
        rows = branch(parts, "rows")
        self._came(tensor(rows, "clients").cpu(), tensor(rows, "log_alpha").cpu())
        for client in branch(parts, "kept"):
            self._kept[int(client)] = branch(branch(parts, "kept"), client)
