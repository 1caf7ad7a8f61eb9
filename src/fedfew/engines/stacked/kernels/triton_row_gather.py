"""Rows by index in Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_rows(table, at, values, scale, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Add scale · values[i] to table[at[i]]. Rows of zeros (padding has them, many to one row of the table) are passed over."""
    i = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(values + i * WIDTH + d, mask=d < WIDTH, other=0.0)
    row = tl.load(at + i)
    tl.atomic_add(table + row * WIDTH + d, value * scale, mask=(d < WIDTH) & (value != 0), sem="relaxed")


@triton.jit
def pictures(
    x, at, out,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr, DIVISOR: tl.constexpr, LESS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[i, pixel, channel] = x[at[i], channel, pixel] / DIVISOR − LESS."""
    i = tl.program_id(0).to(tl.int64)
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = element < PIXELS * CHANNELS
    row = tl.load(at + i)
    byte = tl.load(x + row * (PIXELS * CHANNELS) + element % CHANNELS * PIXELS + element // CHANNELS, mask=inside, other=0)
    divisor = tl.full((BLOCK,), DIVISOR, tl.float32)
    tl.store(out + i * (PIXELS * CHANNELS) + element, tl.div_rn(byte.to(tl.float32), divisor) - LESS, mask=inside)
