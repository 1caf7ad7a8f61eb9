"""What a replica of a module holds, and what stays in the module itself.

Parameters with ``requires_grad`` and buffers are a replica's: they are stacked, trained, sent. Frozen parameters
(``requires_grad_(False)``) stay in the module, once for all replicas. A parameter with several names (tied weights) goes by the
first of them; PyTorch's ``functional_call`` puts it in the place of all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn


def replica_state(module: nn.Module) -> dict[str, Tensor]:
    """Parameters that are trained, and buffers, in the order of ``state_dict``; not copied."""
    names = {name for name, p in module.named_parameters() if p.requires_grad} | {name for name, _ in module.named_buffers()}
    return {name: t for name, t in module.state_dict().items() if name in names}


def frozen_state(module: nn.Module) -> dict[str, Tensor]:
    """Parameters that are not trained; not copied."""
    names = {name for name, p in module.named_parameters() if not p.requires_grad}
    return {name: t for name, t in module.state_dict().items() if name in names}


def frozen_hash(module: nn.Module) -> str:
    """A hash of the parameters that are not trained: two modules with the same can share updates of the rest."""
    digest = hashlib.sha256()
    for name, value in frozen_state(module).items():
        digest.update(f"{name} {value.dtype} {list(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def buffer_names(module: nn.Module) -> frozenset[str]:
    return frozenset(name for name, _ in module.named_buffers())


def load_state(module: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """The module itself with these tensors, which must be a replica's and all that is frozen."""
    wanted = replica_state(module).keys() | frozen_state(module).keys()
    if wanted != tensors.keys():
        wrong = {"misses": wanted - tensors.keys(), "has no": tensors.keys() - wanted}
        words = [f"{word} {', '.join(sorted(names)[:5])}" for word, names in wrong.items() if names]
        raise ValueError(f"the state does not fit {type(module).__name__}: {'; '.join(words)}")
    module.load_state_dict(dict(tensors), strict=False)  # the other names of tied weights are not listed
    return module


def holding(factory: Callable[[], nn.Module], frozen: Mapping[str, Tensor]) -> Callable[[], nn.Module]:
    """The factory of modules that hold these frozen parameters, whatever the factory's own are."""
    if not frozen:
        return factory

    def make() -> nn.Module:
        module = factory()
        with torch.no_grad():
            for name, value in frozen.items():
                module.get_parameter(name).copy_(value)
        return module

    return make
