"""Back through a linear layer and its step of SGD in one pass over its weights, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["B"])
def linear_step(
    weight, g, x, out, scale, B,
    N: tl.constexpr, D: tl.constexpr, BB: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """out[R, B, D] = g[R, B, N] · weight[R, N, D], and weight += scale · gᵀ · x[R, B, D]. A program has BD columns of one
    replica's weights to itself and goes down their rows; it multiplies by what it then overwrites.

    Hopper's tensor cores take the second factor of a product in TF32 only with the axis that is summed last in memory, but the
    first one from registers in any order. Hence out is computed as its transpose. A minus sign keeps a factor in registers, and
    the next rows of the weights are read before these are multiplied.
    """
    r = tl.program_id(1).to(tl.int64)
    d = tl.program_id(0) * BD + tl.arange(0, BD)
    b, n = tl.arange(0, BB), tl.arange(0, BN)
    g += r * B * N
    column = (d < D)[None, :]
    inside = (b < B)[:, None] & column
    rows = r * B * D + b[:, None] * D + d[None, :]
    of_rows = tl.load(x + rows, mask=inside, other=0.0)
    place = weight + r * N * D + n[:, None] * D + d[None, :]
    w = tl.load(place, mask=(n < N)[:, None] & column, other=0.0)
    back = tl.zeros((BD, BB), tl.float32)
    for first in range(0, N, BN):
        ahead = first + BN
        following = tl.load(place + ahead * D, mask=(ahead + n < N)[:, None] & column, other=0.0)
        at = first + n
        of_outputs = tl.load(g + b[:, None] * N + at[None, :], mask=(b < B)[:, None] & (at < N)[None, :], other=0.0)
        back = tl.dot(tl.trans(-w), tl.trans(of_outputs), back, input_precision="tf32")
        down = tl.dot(tl.trans(-of_outputs), of_rows, input_precision="tf32")
        tl.store(place + first * D, w - scale * down, mask=(at < N)[:, None] & column)
        w = following
    tl.store(out + rows, -tl.trans(back), mask=inside)
