"""Bias and ReLU of a stack's linear layer in Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["total"])
def bias_relu(x, bias, out, total, N: tl.constexpr, BLOCK: tl.constexpr):
    """out = max(x + bias, 0) for x[R, total // N, N] and bias[R, N]; NaN stays."""
    r = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    value = tl.load(x + r * total + at, mask=inside, other=0.0) + tl.load(bias + r * N + at % N, mask=inside, other=0.0)
    tl.store(out + r * total + at, tl.where(value <= 0, 0.0, value), mask=inside)
