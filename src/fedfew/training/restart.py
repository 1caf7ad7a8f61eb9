"""Models that no client uses start again near the clients that are served worst."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedfew.methods import Method
from fedfew.stack import Tree, leaves, tree_map

if TYPE_CHECKING:
    from fedfew.training.server_step import ServerStep

NEAR = 0.9  # what a model that starts again has of its neighbour; the rest is its own, so that the two can part


def applies(method: Method, server: Tree, models: int) -> bool:
    """Are the server's state K ≥ 2 whole models, moved by weights of clients?"""
    moved = method.aggregates and not method.notes and not method.not_optimised
    return moved and models > 1 and all(t.ndim > 0 and len(t) == models for t in leaves(server))


def unused_for(before: tuple[int, ...], log_weights: Tensor) -> tuple[int, ...]:
    """Rounds for which each model was unused: no client gave it half of an equal share of its weight.

    before: the same before this round, empty at first; log_weights: log ω ``[C, K]`` of the round.
    """
    models = log_weights.shape[1]
    used = (log_weights.softmax(1) >= 1 / (2 * models)).any(0).tolist()
    return tuple(0 if here else rounds + 1 for here, rounds in zip(used, before or (0,) * models, strict=True))


def restarted(step: ServerStep, losses: Tensor, after: int) -> tuple[ServerStep, list[tuple[int, int]]]:
    """The step with every model that was unused for so many rounds moved most of the way to the model that the client with the
    largest least loss uses; and (model, neighbour) of each. Its moments start at 0, its average at itself.

    losses: ``[C, K]`` of the round.
    """
    least, best = losses.min(1)
    neighbour = int(best[least.argmax()])
    idle = [k for k, rounds in enumerate(step.unused) if rounds >= after and k != neighbour]
    if not idle:
        return step, []

    def moved(t: Tensor) -> Tensor:
        new = t.clone()
        for k in idle:
            new[k] = t[neighbour].lerp(t[k], 1 - NEAR) if t.is_floating_point() else t[neighbour]
        return new

    def cleared(t: Tensor) -> Tensor:
        new = t.clone()
        new[idle] = 0
        return new

    server = tree_map(moved, step.server)
    average = tree_map(lambda a, t: a.index_copy(0, torch.tensor(idle, device=a.device), t[idle]), step.average, server)
    unused = tuple(0 if k in idle else rounds for k, rounds in enumerate(step.unused))
    moments = tree_map(cleared, step.moments)
    return replace(step, server=server, moments=moments, average=average, unused=unused), [(k, neighbour) for k in idle]
