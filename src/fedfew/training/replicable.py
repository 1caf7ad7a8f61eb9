"""Whether copies of a module with weights of their own, as clients and models are, do what the module would do with them."""

from __future__ import annotations

import copy
import random

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedfew.models.state import buffer_names, frozen_state, replica_state
from fedfew.training.own_randomness import generators_restored

SMALL = 2**16  # numbers of a frozen tensor that is copied


def check_replicable(module: nn.Module, x: Tensor) -> None:
    """Refuse a module that in training remembers something elsewhere than in its buffers, or that reaches its parameters by
    another way than through its layers. It is left in evaluation mode."""
    if all(type(layer).__module__.startswith("torch.nn.") for layer in module.modules()):
        return
    name, own, buffers = type(module).__name__, _state(module), buffer_names(module)
    try:
        with torch.no_grad(), generators_restored():
            trained = {path: p for path, p in module.named_parameters() if p.requires_grad}
            others = {path: t + 0.1 * torch.randn_like(t) for path, t in trained.items() if path not in buffers}
            shared = {id(p): p for path, p in module.named_parameters() if path not in own}
            replica = copy.deepcopy(module, shared)
            weights = own | others
            first, served = (_of_replica(replica.train(training), weights, x) for training in (True, False))
            _of_replica(replica.train(), weights, x[[0, 0]])  # of another mean
            served_again, again = (_of_replica(replica.train(training), weights, x) for training in (False, True))
            itself = _of_itself(module, weights, x)
    except (RuntimeError, ValueError):  # of two samples, which are too few for some
        return
    if not (_alike(first, again) and _alike(served, served_again)):
        raise ValueError(
            f"model: {name} gives another output for a batch once it has seen another one in training: it remembers something "
            "elsewhere than in its buffers, which all clients and models would share. Keep it in a buffer (self.register_buffer) "
            "and write into that with copy_ or add_"
        )
    if not _alike(first, itself):
        raise ValueError(
            f"model: {name} reaches parameters by another way than its layers (a list of parameters, a lambda that refers to "
            "self), so that copies of it would not use their own weights: refer to them as attributes in forward, "
            "self.layer.weight"
        )


def _state(module: nn.Module) -> dict[str, Tensor]:
    """What a replica has of its own, and what is frozen but for large tensors: a frozen buffer may be written in training."""
    return replica_state(module) | {path: t for path, t in frozen_state(module).items() if t.numel() <= SMALL}


def _of_replica(replica: nn.Module, weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """As engines call it."""
    _draw_alike()
    found: Tensor = functional_call(replica, {path: t.clone() for path, t in weights.items()}, (x,))
    return found


def _of_itself(module: nn.Module, weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """What the module gives with these weights, which it has for the time being."""
    own = _state(module)
    before = {path: t.clone() for path, t in own.items()}
    _draw_alike()
    try:
        for path, t in own.items():
            t.copy_(weights[path])
        found: Tensor = module.train()(x)
        return found
    finally:
        module.eval()
        for path, t in own.items():
            t.copy_(before[path])


def _draw_alike() -> None:
    torch.default_generator.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


def _alike(a: Tensor, b: Tensor) -> bool:
    """But for the rounding of one operation or another."""
    largest = float(a.nan_to_num().abs().max()) if a.numel() else 0.0
    return torch.allclose(a, b, rtol=0.0, atol=16 * torch.finfo(a.dtype).eps * largest, equal_nan=True)
