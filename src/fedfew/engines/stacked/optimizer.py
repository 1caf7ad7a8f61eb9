"""The clients' optimisers for a whole stack: SGD, Adam and AdamW as PyTorch's, replica by replica.

Replicas of small clients finish their epoch early, so with several epochs they have taken fewer steps than others: Adam's number
of steps is one per replica. Everything is done in place on tensors and never asks the device for a number.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedfew.config import LocalTraining
from fedfew.engines.base import BETAS, EPS

STEPS = "steps"

State = dict[str, Tensor]  # of a whole stack, by what it is and the parameter's path


def is_plain(training: LocalTraining) -> bool:
    """Is a step nothing but −lr times the gradient?"""
    return training.optimizer == "sgd" and not (training.momentum or training.weight_decay or training.clip_gradient)


def fresh_state(training: LocalTraining, trained: list[tuple[str, Tensor]]) -> State:
    """The state that an optimiser starts with, for parameters ``[R, …]``."""
    if training.optimizer == "sgd":
        return {path: torch.zeros_like(t) for path, t in trained} if training.momentum else {}
    state = {f"{moment} of {path}": torch.zeros_like(t) for moment in ("first", "second") for path, t in trained}
    if trained:
        replicas = trained[0][1]
        state[STEPS] = torch.zeros(len(replicas), dtype=torch.float64, device=replicas.device)
    return state


def step(
    training: LocalTraining, lr: float | Tensor, paths: list[str], parameters: list[Tensor], gradients: list[Tensor], state: State
) -> None:
    """Move the first replicas of a stack, ``parameters[r, …]``, and their part of the state."""
    if training.clip_gradient:
        gradients = clipped(gradients, training.clip_gradient)
    if training.weight_decay and training.optimizer != "adamw":
        gradients = list(torch._foreach_add(gradients, parameters, alpha=training.weight_decay))
    if training.optimizer == "sgd":
        _sgd(training.momentum, lr, paths, parameters, gradients, state)
        return
    if training.weight_decay and training.optimizer == "adamw":
        torch._foreach_mul_(parameters, 1 - lr * training.weight_decay)
    _adam(lr, paths, parameters, gradients, state)


def clipped(gradients: list[Tensor], most: float) -> list[Tensor]:
    """Gradients ``[r, …]`` whose norm, over all parameters of a replica, is at most so much; as ``clip_grad_norm_`` scales."""
    norm = torch.stack([g.reshape(len(g), -1).square().sum(1) for g in gradients]).sum(0).sqrt()
    scale = (most / (norm + 1e-6)).clamp_max(1.0)
    return [g * _beside(scale, g) for g in gradients]


def _sgd(
    momentum: float, lr: float | Tensor, paths: list[str], parameters: list[Tensor], steps: list[Tensor], state: State
) -> None:
    if momentum:
        running = [state[path][: len(t)] for path, t in zip(paths, parameters, strict=True)]
        torch._foreach_mul_(running, momentum)
        torch._foreach_add_(running, steps)
        steps = running
    if isinstance(lr, Tensor):
        torch._foreach_sub_(parameters, torch._foreach_mul(steps, lr))
    else:
        torch._foreach_add_(parameters, steps, alpha=-lr)


def _adam(lr: float | Tensor, paths: list[str], parameters: list[Tensor], gradients: list[Tensor], state: State) -> None:
    """p −= lr/(1 − β₁ᵗ)·m / (√v/√(1 − β₂ᵗ) + ε)"""
    active = len(parameters[0])
    first, second = ([state[f"{moment} of {path}"][:active] for path in paths] for moment in ("first", "second"))
    steps = state[STEPS][:active].add_(1)
    torch._foreach_lerp_(first, gradients, 1 - BETAS[0])
    torch._foreach_mul_(second, BETAS[1])
    torch._foreach_addcmul_(second, gradients, gradients, 1 - BETAS[1])
    root = (1 - BETAS[1] ** steps).sqrt()
    size = lr * root / (1 - BETAS[0] ** steps)
    below = torch._foreach_sqrt(second)
    torch._foreach_add_(below, [_beside(EPS * root, t) for t in below])
    for parameter, m, d in zip(parameters, first, below, strict=True):
        parameter.sub_(m / d * _beside(size, m))


def _beside(of_replicas: Tensor, t: Tensor) -> Tensor:
    """One number per replica, to be combined with a parameter's ``[r, …]``."""
    return of_replicas.to(t.dtype).reshape(-1, *[1] * (t.ndim - 1))
