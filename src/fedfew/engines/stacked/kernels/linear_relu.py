"""A linear layer with few rows and the ReLU after it in one kernel: Triton on a GPU that has it, PyTorch's own operations
elsewhere.

With few rows a product takes as long as its weights take to be read, and with few replicas cuBLAS has too few programs to read
them as fast as the GPU could.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedfew.engines.stacked.kernels import usable
from fedfew.engines.stacked.kernels.compiling import start
from fedfew.engines.stacked.kernels.operation import operation

MOST_ROWS = 64  # of a replica, which one program holds
LARGE = 2**16  # weights of a layer: of fewer the time does not go into reading them
PROGRAMS = 64  # of 64 outputs each: with fewer, more and smaller ones are faster


def suits(rows: int, outputs: int, inputs: int) -> bool:
    """Is the kernel made for such a layer?"""
    return rows <= MOST_ROWS and outputs > rows and LARGE <= outputs * inputs < 2**31


def tiles(rows: int, outputs: int, replicas: int) -> dict[str, int]:
    """Block sizes, warps and stages, the best of those tried on an H200: fewer outputs per program where replicas are few."""
    many = replicas * outputs >= 64 * PROGRAMS
    sizes = {"BN": 64, "BD": 32, "num_stages": 6} if many else {"BN": 16, "BD": 64, "num_stages": 4}
    return {"BB": max(16, 1 << (rows - 1).bit_length()), "num_warps": 4} | sizes


@operation("linear_relu")
def linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """max(x·weightᵀ + bias, 0) for x ``[R, B, D]``, weight ``[R, N, D]`` and bias ``[R, 1, N]``."""
    if not usable(x.device):
        return torch.baddbmm(bias, x, weight.mT).relu()
    from fedfew.engines.stacked.kernels import triton_linear_relu

    (R, B, D), N = x.shape, weight.shape[1]
    out = torch.empty(R, B, N, device=x.device)
    tile = tiles(B, N, R)
    given = (t.contiguous() for t in (x, weight, bias))
    start(triton_linear_relu.linear_relu, (-(-N // tile["BN"]), R), *given, out, B, N, D, **tile)
    return out
