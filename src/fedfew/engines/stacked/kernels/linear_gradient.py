"""Back through a linear layer with few outputs and the ReLU before it in one kernel: Triton on a GPU that has it, PyTorch's own
operations elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor

from fedfew.engines.stacked.kernels import usable
from fedfew.engines.stacked.kernels.compiling import start
from fedfew.engines.stacked.kernels.operation import operation

FEW = 32  # outputs: of more a matrix product is faster


@operation("through_relu")
def through_relu(g: Tensor, weight: Tensor, activation: Tensor) -> Tensor:
    """The gradient before the ReLU that gave ``activation[R, B, D]``, from that of the layer ``weight[R, N, D]`` after it,
    g ``[R, B, N]``."""
    if not usable(g.device):
        return torch.ops.aten.threshold_backward(torch.bmm(g, weight), activation, 0)
    from fedfew.engines.stacked.kernels import triton_linear_gradient

    (R, B, N), D = g.shape, weight.shape[2]
    out = torch.empty(R, B, D, device=g.device)
    BB, BD = 32, 128
    grid = (-(-B // BB), -(-D // BD), R)
    factors = (t.contiguous() for t in (g, weight, activation))
    start(triton_linear_gradient.through_relu, grid, *factors, out, B, N, D, BB=BB, BD=BD, num_warps=4)
    return out
