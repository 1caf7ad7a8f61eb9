"""Properties of a module's BatchNorm layers."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def batch_norms(module: nn.Module) -> dict[str, _BatchNorm]:
    """The BatchNorm layers of a module by name."""
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, _BatchNorm)}


def state_names(module: nn.Module) -> tuple[str, ...]:
    """The names in the module's state of all that belongs to its BatchNorm layers: scale, shift and running statistics."""
    layers = batch_norms(module)
    return tuple(name for name in module.state_dict() if name.rpartition(".")[0] in layers)


def statistics_names(module: nn.Module) -> tuple[str, ...]:
    """Of these, the running statistics."""
    buffers = {name for name, _ in module.named_buffers()}
    return tuple(name for name in state_names(module) if name in buffers)


def uses_batch_statistics(module: nn.Module) -> bool:
    """Does what a sample gets in evaluation depend on which others are in its batch?"""
    return any(layer.running_mean is None for layer in batch_norms(module).values())


def without_statistics(module: nn.Module) -> nn.Module:
    """The module itself, its BatchNorm layers keeping no running statistics: those of the batch are used in evaluation, too."""
    for layer in batch_norms(module).values():
        layer.track_running_stats = False
        for statistic in ("running_mean", "running_var", "num_batches_tracked"):
            setattr(layer, statistic, None)
    return module


def needs_two(module: nn.Module, sample: Tensor) -> bool:
    """Does a batch of one ``sample[1, …]`` leave a BatchNorm layer with one value a channel, which has no variance?

    A layer that sees an image larger than 1×1 has more.
    """
    trial = copy.deepcopy(module).eval()  # no dropout, which would draw random numbers
    for layer in batch_norms(trial).values():
        layer.train()
    try:
        with torch.no_grad():
            trial(sample)
    except ValueError as error:
        if "more than 1 value per channel" in str(error):
            return True
        raise
    return False
