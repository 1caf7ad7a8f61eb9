"""Back through a linear layer with few outputs and the ReLU before it, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["B"])
def through_relu(g, weight, activation, out, B, N: tl.constexpr, D: tl.constexpr, BB: tl.constexpr, BD: tl.constexpr):
    """out[R, B, D] = g[R, B, N] · weight[R, N, D] where activation[R, B, D] is above 0, else 0. Of so few outputs a tensor core
    would be mostly idle: sums are in float32."""
    r = tl.program_id(2).to(tl.int64)
    b = tl.program_id(0) * BB + tl.arange(0, BB)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    acc = tl.zeros((BB, BD), tl.float32)
    for n in tl.static_range(N):
        of_rows = tl.load(g + (r * B + b) * N + n, mask=b < B, other=0.0)
        of_columns = tl.load(weight + (r * N + n) * D + d, mask=d < D, other=0.0)
        acc += of_rows[:, None] * of_columns[None, :]
    place = ((r * B + b) * D)[:, None] + d[None, :]
    inside = (b < B)[:, None] & (d < D)[None, :]
    cut = tl.load(activation + place, mask=inside, other=0.0) <= 0
    tl.store(out + place, tl.where(cut, 0.0, acc), mask=inside)
