"""Back through ReLU and 2×2 pooling."""

from __future__ import annotations

import torch
from torch import Tensor

from fedfew.engines.stacked.kernels import launch, scaling, triton_unpooling
from fedfew.engines.stacked.kernels.compiling import start

SAMPLES = 8  # that a program takes, of channels last alone


def unpool(
    g: Tensor, source: Tensor, height: int, width: int, precision: str, with_last: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient before pooling and ReLU, from that of the pooled image g [R, B, OH, OW, N], as factors: [R, B, height, width,
    N] and, unless it is not wanted, the same with the samples last; and the gradient of the bias in parts, to be summed over
    their first axis."""
    dtype = launch.stored(precision)
    scale, of_sums = scaling.of_incoming(g, precision)
    g = g if g.permute(0, 1, 4, 2, 3).is_contiguous() else g.contiguous()  # channels last or first
    R, B, OH, OW, N = g.shape
    odd = height % 2 or width % 2  # pooling left a row or a column out, whose gradient is zero
    new = g.new_zeros if odd else g.new_empty
    out = new(R, B, height, width, N, dtype=dtype)
    if not with_last:
        sums = torch.empty(-(-B // SAMPLES), R, N, device=g.device)
        BP, BN = min(64, max(16, 1 << (OH * OW - 1).bit_length())), 64 if N > 32 else 32
        start(
            triton_unpooling.unpool_channels_last, (len(sums), -(-N // BN), R),
            g, source, out, sums, B, *launch.layout(g), OW, OH * OW, height, width, N,
            SAMPLES=SAMPLES, BP=BP, BN=BN, SCALE=scale, OF_SUMS=of_sums, num_warps=4,
        )  # fmt: skip
        return out, g.new_empty((0,) * 5), sums
    S = launch.aligned(B, dtype)
    last = new(R, N, height, width, S, dtype=dtype)
    BB, BN = 32, 32
    sums = torch.empty(OH * -(-S // BB), R, N, device=g.device)
    start(
        triton_unpooling.unpool, (len(sums), -(-N // BN), R),
        g, source, out, last, sums, B, *launch.layout(g), OH, OW, height, width, N, S,
        BB=BB, BN=BN, SCALE=scale, OF_SUMS=of_sums, num_warps=4,
    )  # fmt: skip
    return out, last, sums
