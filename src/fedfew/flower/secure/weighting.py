"""A method's weights with masked aggregation: clients scale their updates, the server divides the sum by the weights left.

In plain aggregation the server takes the mean of the updates, weighted by ω[i, k]. Here it sends client i its ω[i, k], divided
by the sum over clients for each model k, and the masked sum is the mean. Where clients drop out afterwards the weights of the
others sum to less than one; the server knows them and divides by their sum.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfew.flower.secure.fixed_point import FixedPoint
from fedfew.methods.base import Method, Reply
from fedfew.stack import Tree, from_named, named_leaves
from fedfew.weighted_mean import WeightedMean

MAX_ERROR = 1e-5  # a mean with a larger rounding error is not used


def check_method(method: Method) -> None:
    """Refuse a method whose server needs the single updates, or none."""
    inner: object = method
    while isinstance(inner, Method):  # a method may wrap another one
        if not hasattr(inner, "method") and (inner.absorbs or not inner.aggregates):
            single = "its server uses every client's update by itself, which masks hide"
            why = single if inner.absorbs else "its server uses no updates, so there is nothing to mask"
            raise ValueError(
                f"aggregation = 'masked' cannot be used with {method.name}: {why}. Use aggregation = 'plain', or a method that "
                "needs the mean alone, such as fedfew"
            )
        inner = getattr(inner, "method", None)


def common_parts(like: Tree, models: int) -> set[str]:
    """Paths of what all models have in common: leaves ``[1, …]`` beside others that are ``[K, …]`` (FedFew's share="body").

    They are uploaded once, by the weight Σ_k ω[i, k]. K uploads of the same numbers by K known weights would be K equations,
    which the server could solve for every client's numbers if there are no more than K clients.
    """
    lengths = {path: len(t) for path, t in named_leaves(like)}
    return {path for path, length in lengths.items() if length == 1} if models > 1 and models in lengths.values() else set()


def numbers_in(like: Tree, models: int) -> int:
    """How many numbers a client uploads; ``like`` is an update ``[K or 1, …]``."""
    common = common_parts(like, models)
    return sum((1 if path in common else models) * t[0].numel() for path, t in named_leaves(like))


def scaled(update: Tree, weights: Sequence[float], models: int) -> NDArray[np.float64]:
    """ω[k] · update[k] for every model, as one vector. ``update`` is ``[K, …]``, or ``[1, …]`` where all models use the same
    update. The last weight is that of common parts, where there are any."""
    omega, common = torch.tensor(weights, dtype=torch.float64), common_parts(update, models)
    rows = []
    for path, t in sorted(named_leaves(update)):  # by name: server and site must agree on the order
        flat = t.detach().cpu().double().reshape(len(t), -1)
        rows.append(((omega[-1:] if path in common else omega[:models])[:, None] * flat).reshape(-1))
    return torch.cat(rows).numpy()


@dataclass(frozen=True)
class Weights:
    """ω of the clients that are sent theirs."""

    clients: list[int]
    log: Tensor  # [C, K], or [C, K + 1] with common parts: log ω, without normalisation
    models: int
    whole: Tensor | None = None  # [C]: log of what ω are fractions of; None: of their sum

    @classmethod
    def of(
        cls, method: Method, clients: list[int], losses: Tensor, samples: Tensor, sample_shares: Tensor, like: Tree
    ) -> Weights:
        """From the losses ``[C, K]``, numbers of samples ``[C]`` and n_i / Σ_j n_j ``[C]`` of these clients; ``like`` is an
        update."""
        given = Reply({}, losses, samples), sample_shares, torch.tensor(clients)
        log = method.log_weights(*given).double().masked_fill(losses == torch.inf, -torch.inf)
        models = log.shape[1]
        if common_parts(like, models):
            log = torch.cat([log, log.logsumexp(1, keepdim=True)], 1)
        return cls(clients, log, models, method.log_whole(*given))

    @property
    def log_alpha(self) -> Tensor:
        """[C]: log of each client's weight, but for a constant."""
        return self.log[:, : self.models].logsumexp(1) if self.whole is None else self.whole

    def scaled(self, log_factors: Tensor) -> Weights:
        """Every client's weights multiplied by its factor [C]."""
        whole = None if self.whole is None else self.whole + log_factors
        return replace(self, log=self.log + log_factors[:, None], whole=whole)

    @property
    def normalised(self) -> Tensor:
        """[C, K or K + 1]; each column sums to one over clients, or is all zero where no client gives it weight."""
        return (self.log - _finite(self.log.logsumexp(0))).exp().clamp(max=1.0)

    def mean(
        self, total: NDArray[np.float64], survivors: Collection[int], like: Tree, fixed_point: FixedPoint
    ) -> tuple[WeightedMean, list[int]]:
        """The weighted mean over the survivors, whose sum is ``total``; and the columns that get no mean, because the clients
        with nearly all of their weight dropped out and dividing by the rest would amplify the rounding error."""
        at = torch.tensor([position for position, client in enumerate(self.clients) if client in survivors])
        remaining = self.normalised[at].sum(0)
        log_total = self.log[at].logsumexp(0)
        lost = (log_total > -torch.inf) & (fixed_point.error > MAX_ERROR * remaining)
        inverse = torch.where((remaining > 0) & ~lost, 1 / remaining, 0.0)
        mean = WeightedMean(self.models)
        whole = None if self.whole is None else self.whole[at]
        of_models = log_total.masked_fill(lost, -torch.inf)[: self.models]
        mean.add(of_models[None], _as_tree(total, inverse, like, self.models), whole)
        return mean, lost.nonzero()[:, 0].tolist()


def _as_tree(total: NDArray[np.float64], scale: Tensor, like: Tree, models: int) -> Tree:
    """The numbers as a stack [1, K, …] of models (common parts: [1, 1, …]), each model's multiplied by its scale."""
    begin, common = 0, common_parts(like, models)
    found: dict[str, Tensor] = {}
    for path, t in sorted(named_leaves(like)):
        factors = scale[-1:] if path in common else scale[:models]
        count = len(factors) * t[0].numel()
        numbers = torch.from_numpy(total[begin : begin + count]).reshape(len(factors), -1) * factors[:, None]
        shaped = numbers.reshape(1, len(factors), *t.shape[1:])
        found[path] = shaped.to(t.dtype if t.is_floating_point() else torch.float64)
        begin += count
    return from_named({path: found[path] for path, _ in named_leaves(like)})


def _finite(log: Tensor) -> Tensor:
    return log.masked_fill(log == -torch.inf, 0.0)
