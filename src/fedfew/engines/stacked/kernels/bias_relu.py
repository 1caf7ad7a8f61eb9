"""Bias and ReLU of a stack's linear layer in one kernel: Triton on a GPU that has it, PyTorch's own operations elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor

from fedfew.engines.stacked.kernels import usable
from fedfew.engines.stacked.kernels.compiling import start
from fedfew.engines.stacked.kernels.operation import operation

BLOCK = 1024


@operation("bias_relu")
def bias_relu(x: Tensor, bias: Tensor) -> Tensor:
    """max(x + bias, 0) for x ``[R, B, N]`` and bias ``[R, 1, N]``."""
    if not usable(x.device):
        return (x + bias).relu()
    from fedfew.engines.stacked.kernels import triton_bias_relu

    R, B, N = x.shape
    out = torch.empty(R, B, N, device=x.device)
    grid = (-(-B * N // BLOCK), R)
    start(triton_bias_relu.bias_relu, grid, x.contiguous(), bias.contiguous(), out, B * N, N, BLOCK)
    return out
