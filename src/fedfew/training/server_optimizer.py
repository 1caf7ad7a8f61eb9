"""What the server does with a round's update: adds it (FedAvg), or treats it as a gradient of its own optimiser.

momentum: FedAvgM (Hsu et al. 2019). adam, yogi, adagrad: Algorithm 2 of Reddi et al. 2021, "Adaptive Federated Optimization".
Every model of the server's state has its own moments. Buffers (running statistics) and counters are taken as they come.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedfew.config import TrainConfig
from fedfew.stack import Tree, branch, from_named, named_leaves, tree_map

BETA2, EPSILON = 0.99, 1e-3  # the values that Reddi et al. recommend for β₂ and τ


@dataclass(frozen=True)
class ServerOptimizer:
    """One server step, the same for the simulator and a server on Flower."""

    config: TrainConfig
    trainable: Callable[[str], bool]  # by path in the server's state: is it a parameter, not a buffer?
    notes: frozenset[str] = frozenset()  # branches of the server's state that are no models

    @property
    def idle(self) -> bool:
        return self.config.server_optimizer == "none"

    def step(self, old: Tree, proposed: Tree, moments: Tree) -> tuple[Tree, Tree]:
        """The server's new state and the optimiser's; proposed: what plain aggregation would make of ``old``."""
        if self.idle:
            return proposed, moments
        before, first, second = dict(named_leaves(old)), _named(moments, "first"), _named(moments, "second")
        new: dict[str, Tensor] = {}
        for path, tensor in named_leaves(proposed):
            of_model = self.trainable(path) and path.partition("/")[0] not in self.notes
            if not (of_model and tensor.is_floating_point()):
                new[path] = tensor
                continue
            update = tensor - before[path]
            new[path] = before[path] + self.config.server_lr * self._direction(path, update, first, second)
        kept: Tree = {"first": from_named(first), "second": from_named(second)}
        return from_named(new), kept

    def _direction(self, path: str, update: Tensor, first: dict[str, Tensor], second: dict[str, Tensor]) -> Tensor:
        beta1, kind = self.config.server_momentum, self.config.server_optimizer
        m = first.get(path, torch.zeros_like(update))
        if kind == "momentum":
            first[path] = beta1 * m + update
            return first[path]
        first[path] = beta1 * m + (1 - beta1) * update
        v, square = second.get(path, torch.full_like(update, EPSILON**2)), update.square()
        if kind == "adam":
            v = BETA2 * v + (1 - BETA2) * square
        elif kind == "yogi":
            v = v - (1 - BETA2) * square * torch.sign(v - square)
        else:
            v = v + square
        second[path] = v
        return first[path] / (v.sqrt() + EPSILON)


def averaged(average: Tree, server: Tree, weight: float) -> Tree:
    """The exponential average of the server's states over rounds, from the first one on; counters are not averaged."""
    if weight == 0:
        return {}
    if not average:
        return tree_map(torch.clone, server)
    return tree_map(lambda a, t: a.lerp(t, 1 - weight) if t.is_floating_point() else t.clone(), average, server)


def _named(moments: Tree, name: str) -> dict[str, Tensor]:
    return dict(named_leaves(branch(moments, name)))
