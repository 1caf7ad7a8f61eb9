"""A weighted mean over clients, for each model, whose weights are logarithms."""

from __future__ import annotations

import torch
from torch import Tensor

from fedfew.stack import Tree, branch, converted, real, scaled, tensor, tree_map


def normalised(log_weights: Tensor, axis: int = 0) -> Tensor:
    """Weights that sum to one over an axis. PyTorch's softmax wakes all cores for it, however few the numbers are, and its
    logsumexp takes longer than these four operations."""
    omega = (log_weights - log_weights.amax(axis, keepdim=True)).exp()
    return omega / omega.sum(axis, keepdim=True)


class WeightedMean:
    """``Σ_i ω[i, k] x[i, k] / Σ_i ω[i, k]`` for each model k, added up a chunk of clients at a time.

    The weights come as logarithms and need no normalisation: the largest so far is divided out as the sum goes on, so nothing
    overflows and no chunk has to be kept. ``x`` is a stack ``[C, K, …]``, or ``[C, 1, …]`` where every model takes from the
    same tree (clients that train one model for one of K clusters). Of whole numbers the mean is
    float64; :func:`~fedfew.stack.add` rounds it.
    """

    def __init__(self, models: int) -> None:
        self._largest = torch.full((models,), -torch.inf, dtype=torch.float64)
        self._total = torch.zeros(models, dtype=torch.float64)
        self._sum: Tree | None = None
        self._log_whole: Tensor | None = None  # where it was given, see add

    def add(self, log_weights: Tensor, x: Tree, log_whole: Tensor | None = None) -> None:
        """log_whole: one number per client; the sum of their exponentials is the whole of which the weights are shares. The
        weights themselves sum to it unless it is given."""
        log_weights = log_weights.to("cpu", torch.float64)
        if log_whole is not None:
            self._add_whole(log_whole.to("cpu", torch.float64).logsumexp(0))
        largest = torch.maximum(self._largest, log_weights.amax(0))
        anchor = largest.masked_fill(largest == -torch.inf, 0.0)
        omega = (log_weights - anchor).exp()
        as_type = converted(omega)
        part = tree_map(lambda t: _weighted_sum(as_type(t.device, _real_type(t)), t), x)
        if self._sum is None:
            self._total, self._sum = omega.sum(0), part
        else:
            shrink = (self._largest - anchor).exp()
            self._total = self._total * shrink + omega.sum(0)
            self._sum = tree_map(torch.add, scaled(self._sum, shrink), part)
        self._largest = largest

    def parts(self) -> Tree:
        """The sums so far: what another process needs to :meth:`merge` them with its own. Empty if nothing was added."""
        if self._sum is None:
            return {}
        sums: Tree = {"largest": self._largest, "total": self._total, "sum": self._sum}
        return sums if self._log_whole is None else sums | {"whole": self._log_whole}

    def merge(self, parts: Tree) -> None:
        """Take in the sums of other clients."""
        if not parts:
            return
        theirs, total, added = tensor(parts, "largest").cpu(), tensor(parts, "total").cpu(), branch(parts, "sum")
        largest = torch.maximum(self._largest, theirs)
        anchor = largest.masked_fill(largest == -torch.inf, 0.0)
        shrink, scale = (self._largest - anchor).exp(), (theirs - anchor).exp()
        self._largest = largest
        if "whole" in parts:
            self._add_whole(tensor(parts, "whole").cpu())
        self._total = self._total * shrink + total * scale
        added = scaled(added, scale)
        self._sum = added if self._sum is None else tree_map(torch.add, scaled(self._sum, shrink), added)

    def _add_whole(self, log_whole: Tensor) -> None:
        self._log_whole = log_whole if self._log_whole is None else torch.logaddexp(self._log_whole, log_whole)

    @property
    def log_whole(self) -> Tensor:
        """The log of what the weights are shares of."""
        return self.log_total.logsumexp(0) if self._log_whole is None else self._log_whole

    @property
    def log_total(self) -> Tensor:
        """log Σ_i ω[i, k] for each model, float64; −∞ for a model without weight."""
        return self._total.log() + self._largest.masked_fill(self._largest == -torch.inf, 0.0)

    @property
    def shares(self) -> Tensor:
        """Each model's part of the whole, [K]."""
        return (self.log_total - self.log_whole).exp().nan_to_num(0.0)  # of nothing: nothing

    def mean(self) -> Tree:
        """The weighted mean, stacked over models; zero for a model without weight."""
        assert self._sum is not None, "nothing was added"
        inverse = torch.where(self._total > 0, 1 / self._total.clamp_min(1e-300), 0.0)
        return scaled(self._sum, inverse)


def _real_type(tensor: Tensor) -> torch.dtype:
    return tensor.dtype if tensor.is_floating_point() else torch.float64


def _weighted_sum(omega: Tensor, x: Tensor) -> Tensor:
    """[C, K] and [C, K or 1, …] → [K, …]"""
    clients, models = omega.shape
    x = real(x)
    flat = x.reshape(clients, x.shape[1], -1)
    # bmm: einsum would look for this product at every call
    total = torch.bmm(omega.T[:, None], flat.transpose(0, 1)) if x.shape[1] == models else omega.T @ flat[:, 0]
    return total.reshape(models, *x.shape[2:])
