"""Linear layers whose gradient comes in the layout of their weights.

In the stack a linear layer is a batched product, x·Wᵀ, and autograd's gradient of its second factor is xᵀ·g: the transpose of W's
gradient. Adding that to W strides through memory, and where a layer has few outputs the product itself is slow too. Here the
gradient is computed as gᵀ·x. Forward, nothing changes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class _Product(torch.autograd.Function):
    """x·Wᵀ of a single replica; vmap maps over both passes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return x @ weight.mT

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (g,), (x, weight) = gradients, ctx.saved_tensors
        wants_x, wants_weight = ctx.needs_input_grad
        return g @ weight if wants_x else None, _rows(g).mT @ _rows(x) if wants_weight else None


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


class StackedLinear(nn.Linear):
    """``nn.Linear`` for a stack of replicas."""

    @classmethod
    def like(cls, layer: nn.Linear) -> StackedLinear:
        """The twin of a plain layer, with the same parameters."""
        twin = cls(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
        twin.weight, twin.bias, twin.training = layer.weight, layer.bias, layer.training
        return twin

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = _Product.apply(x, self.weight)
        return product if self.bias is None else product + self.bias


def make_linear(module: nn.Module) -> nn.Module:
    """The module itself, every plain linear layer in it replaced by its twin; names of parameters stay the same."""
    for name, layer in list(module.named_modules()):
        if type(layer) is nn.Linear:
            if not name:
                return StackedLinear.like(layer)
            parent, _, attribute = name.rpartition(".")
            setattr(module.get_submodule(parent), attribute, StackedLinear.like(layer))
    return module
