"""A linear layer and the ReLU after it in Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["B"])
def linear_relu(
    x, weight, bias, out, B,
    N: tl.constexpr, D: tl.constexpr, BB: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """out[R, B, N] = max(x[R, B, D] · weight[R, N, D]ᵀ + bias[R, N], 0); NaN stays. A program has all rows of one replica and
    BN of its outputs."""
    r = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    b, d = tl.arange(0, BB), tl.arange(0, BD)
    row, output = (b < B)[:, None], (n < N)[None, :]
    x += r * B * D
    weight += r * N * D
    acc = tl.zeros((BB, BN), tl.float32)
    for first in range(0, D, BD):
        at = first + d
        of_rows = tl.load(x + b[:, None] * D + at[None, :], mask=row & (at < D)[None, :], other=0.0)
        w = tl.load(weight + n[None, :] * D + at[:, None], mask=output & (at < D)[:, None], other=0.0)
        acc = tl.dot(of_rows, w, acc, input_precision="tf32")
    value = acc + tl.load(bias + r * N + n, mask=n < N, other=0.0)[None, :]
    tl.store(out + r * B * N + b[:, None] * N + n[None, :], tl.where(value <= 0, 0.0, value), mask=row & output)
