"""Back through ReLU and 2×2 pooling in Triton, in the layouts of the kernels that read the gradient there."""

from __future__ import annotations

import triton
import triton.language as tl

from fedfew.engines.stacked.kernels.triton_convolution import times


@triton.jit(do_not_specialize=["B"])
def unpool(
    g, source, out, last, sums, B, per_pixel, per_filter,
    OH: tl.constexpr, OW: tl.constexpr, CH: tl.constexpr, CW: tl.constexpr, N: tl.constexpr, S: tl.constexpr,
    BB: tl.constexpr, BN: tl.constexpr, SCALE: tl.constexpr, OF_SUMS: tl.constexpr,
):  # fmt: skip
    """out[R, B, CH, CW, N] and last[R, N, CH, CW, S], zero where S exceeds B: the gradient before pooling and ReLU, from
    g[R, B, OH, OW, N] (with these strides within an image) and where its pixels came from. sums[OH · (S / BB), R, N]: parts of
    the sum over samples and pixels. One program for a row of pooled pixels, BB samples and BN filters. out and last are SCALE
    times as large, sums OF_SUMS times."""
    CHUNKS: tl.constexpr = (S + BB - 1) // BB
    r = tl.program_id(2).to(tl.int64)
    row, b = tl.program_id(0) // CHUNKS, (tl.program_id(0) % CHUNKS) * BB + tl.arange(0, BB)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (b < B)[:, None] & (n < N)[None, :]
    filled = (n < N)[:, None] & (b < S)[None, :]
    image = (r * B + b)[:, None]
    summed = tl.zeros((BN,), tl.float32)
    for column in range(OW):
        pixel = row * OW + column
        value = tl.load(g + image * (OH * OW * N) + pixel * per_pixel + (n * per_filter)[None, :], mask=inside, other=0.0)
        which = tl.load(source + (image * (OH * OW) + pixel) * N + n[None, :], mask=inside, other=4)
        summed += tl.sum(tl.where(which == 4, 0.0, value.to(tl.float32)), 0)
        value = times(value, SCALE)
        for sub in tl.static_range(4):
            place = (row * 2 + sub // 2) * CW + column * 2 + sub % 2
            here = tl.where(which == sub, value, 0.0)
            tl.store(out + (image * (CH * CW) + place) * N + n[None, :], here, mask=inside)
            tl.store(last + (((r * N + n) * (CH * CW) + place) * S)[:, None] + b[None, :], tl.trans(here), mask=filled)
    tl.store(sums + (tl.program_id(0) * tl.num_programs(2) + r) * N + n, times(summed, OF_SUMS), mask=n < N)


@triton.jit(do_not_specialize=["B"])
def unpool_channels_last(
    g, source, out, sums, B, per_pixel, per_filter,
    OW: tl.constexpr, PIXELS: tl.constexpr, CH: tl.constexpr, CW: tl.constexpr, N: tl.constexpr,
    SAMPLES: tl.constexpr, BP: tl.constexpr, BN: tl.constexpr, SCALE: tl.constexpr, OF_SUMS: tl.constexpr,
):  # fmt: skip
    """The same without ``last``, and with sums[B / SAMPLES, R, N]. One program for SAMPLES samples and BN filters: all pixels of
    a sample lie together in g, whichever way round."""
    r = tl.program_id(2).to(tl.int64)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    begin = tl.program_id(0) * SAMPLES
    summed = tl.zeros((BN,), tl.float32)
    for b in range(begin, tl.minimum(begin + SAMPLES, B)):
        image = r * B + b
        for first in range(0, PIXELS, BP):
            pixel = first + tl.arange(0, BP)
            inside = (pixel < PIXELS)[:, None] & (n < N)[None, :]
            at = image * (PIXELS * N)
            value = tl.load(g + at + (pixel * per_pixel)[:, None] + (n * per_filter)[None, :], mask=inside, other=0.0)
            which = tl.load(source + at + pixel[:, None] * N + n[None, :], mask=inside, other=4)
            summed += tl.sum(tl.where(which == 4, 0.0, value.to(tl.float32)), 0)
            value = times(value, SCALE)
            corner = image * (CH * CW) + pixel // OW * (2 * CW) + pixel % OW * 2
            for sub in tl.static_range(4):
                here = tl.where(which == sub, value, 0.0)
                tl.store(out + ((corner + sub // 2 * CW + sub % 2) * N)[:, None] + n[None, :], here, mask=inside)
    tl.store(sums + (tl.program_id(0) * tl.num_programs(2) + r) * N + n, times(summed, OF_SUMS), mask=n < N)
