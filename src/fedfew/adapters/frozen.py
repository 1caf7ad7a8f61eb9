"""Modules in which all but a chosen part is fixed."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from fedfew.models.layers import replace_layers
from fedfew.models.split import head_names


class FrozenBatchNorm(nn.Module):
    """A BatchNorm layer, or one of InstanceNorm with running statistics, that always uses these; they are frozen parameters here
    and stay as they are."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.eps: float = layer.eps  # type: ignore[assignment]  # a number in every BatchNorm layer
        for name, value in layer.state_dict().items():
            self.register_parameter(name, nn.Parameter(value, requires_grad=False))
        for name in ("weight", "bias"):
            if not hasattr(self, name):
                self.register_parameter(name, None)

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)  # type: ignore[arg-type]  # registered above


def freeze(module: nn.Module, trained: tuple[str, ...]) -> nn.Module:
    """The module itself, frozen but for the submodules named: parameters, running statistics and all other buffers.

    Frozen parameters are held once for all replicas and are not sent. Buffers are a replica's, so they become such parameters.
    """

    def fixed(name: str, layer: nn.Module) -> nn.Module | None:
        keeps = isinstance(layer, _BatchNorm | _InstanceNorm) and layer.running_mean is not None
        return FrozenBatchNorm(layer) if keeps and not _inside(name, trained) else None

    module = replace_layers(module, fixed)
    for name, parameter in module.named_parameters():
        if not _inside(name, trained):
            parameter.requires_grad_(False)
    kept = module.state_dict().keys()  # others are not part of a model
    for name, buffer in list(module.named_buffers()):
        if name in kept and not _inside(name, trained):
            parent, _, attribute = name.rpartition(".")
            owner = module.get_submodule(parent)
            delattr(owner, attribute)
            owner.register_parameter(attribute, nn.Parameter(buffer, requires_grad=False))
    return module


def has_frozen_batch_norm(module: nn.Module) -> bool:
    return any(isinstance(layer, FrozenBatchNorm) for layer in module.modules())


def replaced(module: nn.Module, name: str, by: nn.Module) -> nn.Module:
    """The module with another submodule of that name; "" is the module itself."""
    if not name:
        return by
    parent, _, attribute = name.rpartition(".")
    setattr(module.get_submodule(parent), attribute, by)
    return module


def head_of(module: nn.Module) -> str:
    """The name of the head: the last linear layer."""
    return head_names(module.state_dict())[0].rpartition(".")[0]


def _inside(name: str, submodules: tuple[str, ...]) -> bool:
    return any(name == submodule or name.startswith(f"{submodule}.") for submodule in submodules)
