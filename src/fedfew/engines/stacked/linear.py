"""Linear layers of a whole stack in one product each, forward and backward.

In the stack a linear layer is a batched product x·Wᵀ, and vmap adds its bias in a second pass over the result; here the product
begins with the bias. Autograd's gradient of the second factor is xᵀ·g: the transpose of W's gradient. Adding that to W strides
through memory, and where a layer has few outputs the product itself is slow too; here the gradient is computed as gᵀ·x.

With ``precision="bf16"`` layers of which every replica has its own multiply in TF32: a replica has few rows, so the time goes
into reading its weights, and rounding them first would read and write them once more. With "fp16" all linear layers do.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfew.engines.precision import not_rounded
from fedfew.models.layers import become

FEW = 4  # outputs so many times fewer than rows: on a CPU W·xᵀ is twice as fast as x·Wᵀ then


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    shape = *x.shape[:-1], weight.shape[-2]
    rows, weight = _one_stack(x.to(weight.dtype), weight)
    if not x.is_cuda and bias is not None and FEW * weight.shape[1] <= rows.shape[1]:
        return torch.baddbmm(bias.reshape(len(weight), -1, 1), weight, rows.mT).mT.reshape(shape)
    if bias is None:
        return torch.bmm(rows, weight.mT).reshape(shape)
    return torch.baddbmm(bias.reshape(len(weight), 1, -1), rows, weight.mT).reshape(shape)


class _Linear(torch.autograd.Function):
    """x·Wᵀ + b for x[*R, *B, in], W[*R, out, in] and b[*R, out]: a replica, and under vmap any number of them."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if weight.ndim == 2:
            return F.linear(x, weight, bias)
        with not_rounded():
            return _product(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        x, weight, _ = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (g,), (x, weight) = gradients, ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        (rows, stack), (g, _) = (_one_stack(t.to(weight.dtype), weight) for t in (x, g))
        replicas = weight.shape[:-2]
        with not_rounded() if replicas else nullcontext():
            return (
                torch.bmm(g, stack).reshape(x.shape) if of_x else None,
                torch.bmm(g.mT, rows).reshape(weight.shape) if of_weight else None,
                g.sum(1).reshape(*replicas, -1) if of_bias else None,
            )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, int]:
        """One more axis of replicas. A frozen layer is the same for all of them: theirs are more rows of one product. Where all
        of them see the same samples (on a CPU), theirs are more outputs of it, which all cores and oneDNN share better."""
        of_x, of_weight, of_bias = in_dims
        if weight.ndim == 2 and of_weight is None and (bias is None or of_bias is None):
            rows: Tensor = _Linear.apply(x.movedim(of_x or 0, 0), weight, bias)
            return rows, 0
        same_samples = of_x is None and weight.ndim == 3 and (bias is None or of_bias is not None)
        if same_samples and not x.is_cuda:
            outputs = weight.movedim(of_weight or 0, 0).flatten(0, 1)
            together: Tensor = _Linear.apply(x, outputs, None if bias is None else bias.movedim(of_bias or 0, 0).flatten())
            return together.unflatten(-1, (info.batch_size, -1)).movedim(-2, 0), 0
        every = [
            t if t is None else t.expand(info.batch_size, *t.shape) if at is None else t.movedim(at, 0)
            for t, at in zip((x, weight, bias), in_dims, strict=True)
        ]
        mapped: Tensor = _Linear.apply(*every)
        return mapped, 0


def _one_stack(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """All axes of replicas as one, and all others but the last as another."""
    stack = weight.reshape(-1, *weight.shape[-2:])
    return x.reshape(len(stack), -1, x.shape[-1]), stack


class StackedLinear(nn.Linear):
    """``nn.Linear`` for a stack of replicas."""

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = _Linear.apply(x, self.weight, self.bias)
        return answer


def make_linear(module: nn.Module) -> nn.Module:
    """The module itself, every plain linear layer in it made a stacked one."""
    for layer in module.modules():
        if type(layer) is nn.Linear:
            become(layer, StackedLinear)
    return module
