"""Back through a linear layer and its step of SGD in one pass over its weights: Triton on a GPU that has it, PyTorch's own
operations elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor

from fedfew.engines.stacked.kernels import linear_gradient, usable
from fedfew.engines.stacked.kernels.compiling import start
from fedfew.engines.stacked.kernels.operation import operation

MOST_ROWS = 64  # of a replica, which one program holds


def suits(rows: int, outputs: int, inputs: int) -> bool:
    """Is the kernel made for such a layer? Those of few outputs are one kernel with the ReLU before them."""
    return rows <= MOST_ROWS and outputs > linear_gradient.FEW and outputs * inputs < 2**31


def tiles(rows: int) -> dict[str, int]:
    """Block sizes, warps and stages. A block of 64 on each side is what Hopper's tensor cores multiply at once."""
    return {"BB": max(16, 1 << (rows - 1).bit_length()), "BN": 64, "BD": 64, "num_warps": 4, "num_stages": 3}


@operation("linear_step", mutates=("weight",))
def linear_step(weight: Tensor, g: Tensor, x: Tensor, scale: float) -> Tensor:
    """g·weight, and then weight += scale · gᵀ·x, for weight ``[R, N, D]``, g ``[R, B, N]`` and x ``[R, B, D]``."""
    if not usable(weight.device):
        back = torch.bmm(g, weight)
        weight.baddbmm_(g.mT, x, alpha=scale)
        return back
    from fedfew.engines.stacked.kernels import triton_linear_step

    (R, N, D), B = weight.shape, g.shape[1]
    back = torch.empty(R, B, D, device=g.device)
    tile = tiles(B)
    factors = g.contiguous(), x.contiguous()
    start(triton_linear_step.linear_step, (-(-D // tile["BD"]), R), weight, *factors, back, scale, B, N, D, **tile)
    return back
