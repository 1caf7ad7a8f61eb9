"""Initial models of a run: functions of its seed alone."""

from __future__ import annotations

import torch
from torch import nn

from fedfew import random_streams
from fedfew.methods.base import Fresh
from fedfew.models import ModelFactory
from fedfew.models.state import buffer_names, frozen_state, replica_state
from fedfew.stack import Tree, leaves
from fedfew.util.generators import seeded


def fresh_models(factory: ModelFactory, seed: int, device: torch.device) -> Fresh:
    """fresh(k): the k-th initialisation of what a replica of the module holds."""

    def fresh(k: int) -> Tree:
        return {name: t.clone().to(device) for name, t in replica_state(_initialised(factory, seed, k)).items()}

    return Fresh(fresh, buffer_names(factory()))


def note_on_equal_starts(fresh: Fresh, replicas: int) -> list[str]:
    """A line where several models start alike: methods treat them alike, so they may never differ."""
    if replicas == 1 or not all(map(torch.equal, leaves(fresh(0)), leaves(fresh(1)))):
        return []
    return [
        f"model: all {replicas} models start from the same weights. Give a function that builds a new module at every call to "
        "start them differently"
    ]


def frozen_parameters(factory: ModelFactory, seed: int) -> Tree:
    """The frozen parameters of the first initialisation; all models of a run share them."""
    module = _initialised(factory, seed, 0)
    if not any(p.requires_grad for p in module.parameters()):
        raise ValueError(f"model: {type(module).__name__} has no parameter to train (requires_grad is False for all it has)")
    return {name: t.clone() for name, t in frozen_state(module).items()}


def _initialised(factory: ModelFactory, seed: int, k: int) -> nn.Module:
    with seeded(int(random_streams.count(random_streams.INIT, seed, k))):
        return factory()
