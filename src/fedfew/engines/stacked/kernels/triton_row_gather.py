"""Rows by index in Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_rows(table, at, values, scale, WIDTH: tl.constexpr, BLOCK: tl.constexpr, without=None):
    """Add scale · values[i] to table[at[i]]. Rows of zeros (padding has them, many to one row of the table) are passed over;
    those of which without[i] is true are not even read."""
    i = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = d < WIDTH
    if without is not None:
        inside = d < tl.where(tl.load(without + i), 0, WIDTH)
    value = tl.load(values + i * WIDTH + d, mask=inside, other=0.0)
    row = tl.load(at + i)
    tl.atomic_add(table + row * WIDTH + d, value * scale, mask=inside & (value != 0), sem="relaxed")


@triton.jit
def pictures(
    x, at, moves, out,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, FILLED: tl.constexpr,
    DIVISOR: tl.constexpr, LESS: tl.constexpr, MOVED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[i, row, column, channel] = x[at[i], channel, row, column] / DIVISOR − LESS, 0 for channels from CHANNELS to FILLED.
    MOVED: from the row and column that moves[i] = (mirrored, rows down, columns right) gives, and from a byte of 0 outside of the
    image."""
    PIXELS: tl.constexpr = HEIGHT * WIDTH
    i = tl.program_id(0).to(tl.int64)
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = element < PIXELS * FILLED
    channel, pixel = element % FILLED, element // FILLED
    if MOVED:
        row, column = pixel // WIDTH, pixel % WIDTH
        column = tl.where(tl.load(moves + 3 * i) == 1, WIDTH - 1 - column, column) + tl.load(moves + 3 * i + 2)
        row += tl.load(moves + 3 * i + 1)
        inside_image = (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
        pixel = row * WIDTH + column
    else:
        inside_image = inside
    picture = tl.load(at + i) * (PIXELS * CHANNELS)
    present = inside & inside_image & (channel < CHANNELS)
    byte = tl.load(x + picture + channel * PIXELS + pixel, mask=present, other=0)
    value = tl.div_rn(byte.to(tl.float32), tl.full((BLOCK,), DIVISOR, tl.float32)) - LESS
    tl.store(out + i * (PIXELS * FILLED) + element, tl.where(channel < CHANNELS, value, 0.0), mask=inside)
