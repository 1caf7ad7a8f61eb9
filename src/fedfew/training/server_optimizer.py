"""What the server does with a round's update: adds it (FedAvg), or treats it as a gradient of its own optimiser.

momentum: FedAvgM (Hsu et al. 2019). adam, yogi, adagrad: Algorithm 2 of Reddi et al. 2021, "Adaptive Federated Optimization".
Every model of the server's state has its own moments. Buffers (running statistics) and counters are taken as they come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fedfew.config import TrainConfig
from fedfew.stack import Tree, branch, from_named, named_leaves, tree_map

Tensors = tuple[Tensor, ...]
Moments = Sequence[Tensor | None]  # of each parameter; None: it has none yet

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
        before, new = dict(named_leaves(old)), dict(named_leaves(proposed))
        paths = [path for path, tensor in new.items() if self._moves(path, tensor)]
        if not paths:
            return proposed, moments
        at = [before[path] for path in paths]
        updates = torch._foreach_sub([new[path] for path in paths], at)
        first, second = ({path: kept.get(path) for path in paths} for kept in map(partial(_named, moments), ("first", "second")))
        directions, m, v = self._directions(updates, list(first.values()), list(second.values()))
        new |= zip(paths, torch._foreach_add(at, torch._foreach_mul(directions, self.config.server_lr)), strict=True)
        kept: Tree = {"first": from_named(dict(zip(paths, m, strict=True)))}
        kept["second"] = from_named(dict(zip(paths, v, strict=False)))
        return from_named(new), kept

    def is_buffer(self, path: str) -> bool:
        """Is it a buffer of a model, not a parameter or a note?"""
        return not self.trainable(path) and not self._is_note(path)

    def _moves(self, path: str, tensor: Tensor) -> bool:
        return self.trainable(path) and not self._is_note(path) and tensor.is_floating_point()

    def _is_note(self, path: str) -> bool:
        return path.partition("/")[0] in self.notes

    def _directions(self, updates: Tensors, first: Moments, second: Moments) -> tuple[Tensors, Tensors, Tensors]:
        """Which way the parameters go, and the new moments; all parameters in one operation, which on a GPU is a few kernels."""
        beta1, kind = self.config.server_momentum, self.config.server_optimizer
        m = torch._foreach_mul([torch.zeros_like(u) if t is None else t for t, u in zip(first, updates, strict=True)], beta1)
        if kind == "momentum":
            torch._foreach_add_(m, updates)
            return m, m, ()
        torch._foreach_add_(m, torch._foreach_mul(updates, 1 - beta1))
        squares = torch._foreach_mul(updates, updates)
        v = tuple(torch.full_like(u, EPSILON**2) if t is None else t for t, u in zip(second, updates, strict=True))
        if kind == "adam":
            v = torch._foreach_add(torch._foreach_mul(v, BETA2), torch._foreach_mul(squares, 1 - BETA2))
        elif kind == "yogi":
            towards = torch._foreach_sign(torch._foreach_sub(v, squares))
            v = torch._foreach_sub(v, torch._foreach_mul(torch._foreach_mul(squares, 1 - BETA2), towards))
        else:
            v = torch._foreach_add(v, squares)
        return torch._foreach_div(m, torch._foreach_add(torch._foreach_sqrt(v), EPSILON)), m, v


def averaged(average: Tree, server: Tree, weight: float) -> Tree:
    """The exponential average of the server's states over rounds, from the first one on; counters are not averaged."""
    if weight == 0:
        return {}
    if not average:
        return tree_map(torch.clone, server)
    before, now = dict(named_leaves(average)), dict(named_leaves(server))
    paths = [path for path, t in now.items() if t.is_floating_point()]
    moved = torch._foreach_lerp([before[path] for path in paths], [now[path] for path in paths], 1 - weight) if paths else []
    found = dict(zip(paths, moved, strict=True))
    return from_named({path: found[path] if path in found else t.clone() for path, t in now.items()})


def _named(moments: Tree, name: str) -> dict[str, Tensor]:
    return dict(named_leaves(branch(moments, name)))
