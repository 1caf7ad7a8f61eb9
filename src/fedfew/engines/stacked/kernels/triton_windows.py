"""Pooled convolutions of images with few channels, in which reading the patches would take most of the time.

The four patches of a pooled pixel overlap: together they are a window of (KH + STRIDE) × (KW + STRIDE) pixels. Here a window is
read once and multiplied by four sets of filters, each moved to one of the four places within it and zero elsewhere: columns
[4, BN] of one product. Channels are filled up with zeros to C, so that several numbers are read at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fedfew.engines.stacked.kernels.triton_convolution import dot, times


@triton.jit
def filled_up(x, out, total, F: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """out[pixels, C] from x[pixels, F]: zero where C exceeds F."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    pixel, c = at // C, at % C
    tl.store(out + at, tl.load(x + pixel * F + c, mask=(at < total) & (c < F), other=0.0), mask=at < total)


@triton.jit
def in_windows(
    filters, out, total,
    F: tl.constexpr, C: tl.constexpr, N: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """out[R, 4, N, KH + STRIDE, KW + STRIDE, C] from filters[R, N, KH, KW, F]: each at its four places in a window."""
    WIDTH: tl.constexpr = KW + STRIDE
    HEIGHT: tl.constexpr = KH + STRIDE
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    c, column, row = at % C, at // C % WIDTH, at // (C * WIDTH) % HEIGHT
    n, sub, r = at // (C * WIDTH * HEIGHT) % N, at // (C * WIDTH * HEIGHT * N) % 4, at // (C * WIDTH * HEIGHT * N * 4)
    kh, kw = row - sub // 2 * STRIDE, column - sub % 2 * STRIDE
    there = (at < total) & (c < F) & (kh >= 0) & (kh < KH) & (kw >= 0) & (kw < KW)
    value = tl.load(filters + (((r * N + n) * KH + kh) * KW + kw) * F + c, mask=there, other=0.0)
    tl.store(out + at, value, mask=at < total)


@triton.jit
def _windows(b, oh, ow, q, H, W, C: tl.constexpr, WIDTH: tl.constexpr, STRIDE: tl.constexpr):
    """Where numbers q of the windows of pooled pixels (oh, ow) of images b lie: [pixels, q]."""
    corner = ((b * H + oh * (2 * STRIDE)) * W + ow * (2 * STRIDE)) * C
    within = q // (WIDTH * C) * (W * C) + q % (WIDTH * C)
    return corner[:, None] + within[None, :]


@triton.jit
def _larger(a, i, b, j):
    """The larger of two and which it is. The first of equals wins and NaN wins over all, as in PyTorch."""
    later = (b > a) | ((b == a) & (j < i)) | ((b != b) & ((a == a) | (j < i)))
    return tl.where(later, b, a), tl.where(later, j, i)


@triton.jit(do_not_specialize=["B"])
def forward(
    x, filters, bias, out, source,
    B, per_pixel, per_filter,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, C: tl.constexpr, N: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, STRIDE: tl.constexpr, BIAS: tl.constexpr,
    TOGETHER: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """As :func:`triton_convolution.forward` with POOL, from filters[R, 4, N, HEIGHT, WIDTH, C] in windows."""
    r = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    Q: tl.constexpr = HEIGHT * WIDTH * C
    ok = m < B * OH * OW
    b, oh, ow = m // (OH * OW), (m // OW) % OH, m % OW
    x += r * B * H * W * C
    filters += r * 4 * N * Q
    column = tl.arange(0, 4 * BN)
    of_window = column // BN * N + tl.program_id(1) * BN + column % BN  # which of the 4·N filters
    there = tl.program_id(1) * BN + column % BN < N
    acc = tl.zeros((BM, 4 * BN), tl.float32)
    for first in range(0, Q, BK):
        q = first + tl.arange(0, BK)
        # windows overlap, but copies of 16 bytes go past the L1 cache: of 8 bytes it is said that they lie together
        at = tl.max_contiguous(x + _windows(b, oh, ow, q, H, W, C, WIDTH, STRIDE), [1, TOGETHER])
        window = tl.load(at, mask=ok[:, None] & (q < Q)[None, :], other=0.0)
        w = tl.load(filters + (of_window * Q)[None, :] + q[:, None], mask=(q < Q)[:, None] & there[None, :], other=0.0)
        acc = dot(window, w, acc, PRECISION)
    acc = tl.reshape(acc, (BM, 4, BN))
    acc, which = tl.reduce((acc, tl.zeros((BM, 4, BN), tl.int32) + tl.arange(0, 4)[None, :, None]), 1, _larger)
    if BIAS:
        acc += tl.load(bias + r * N + n, mask=n < N, other=0.0)[None, :]
    inside = ok[:, None] & (n < N)[None, :]
    at = r * B * OH * OW * N + m[:, None] * N + n[None, :]
    tl.store(source + at, tl.where(acc <= 0, 4, which).to(tl.int8), mask=inside)
    image = (r * B + b) * (OH * OW * N) + (m % (OH * OW)) * per_pixel
    tl.store(out + image[:, None] + (n * per_filter)[None, :], tl.where(acc <= 0, 0.0, acc), mask=inside)


@triton.jit(do_not_specialize=["per_split"])
def weight_gradient(
    x, g, source, out, out_bias,
    B, per_split,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, C: tl.constexpr, N: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, STRIDE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, MOST: tl.constexpr, REST: tl.constexpr, PRECISION: tl.constexpr,
    SCALE: tl.constexpr, OF_SUMS: tl.constexpr,
):  # fmt: skip
    """out[splits, R, 4, N, HEIGHT·WIDTH·C], of the filters in windows, and out_bias[splits, R, N]: sums over ``per_split`` pixels
    of the pooled gradient g[R, B, OH, OW, N] each. A window is two tiles, of MOST numbers and of REST, both powers of 2.
    What is summed is SCALE times as large for out and OF_SUMS times for out_bias."""
    Q: tl.constexpr = HEIGHT * WIDTH * C
    r = tl.program_id(2).to(tl.int64)
    split = tl.program_id(1)
    q = tl.arange(0, MOST)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    total = B * OH * OW
    x += r * B * H * W * C
    g += r * total * N
    source += r * total * N
    begin = split * per_split
    end = tl.minimum(begin + per_split, total)
    acc = tl.zeros((4 * BN, MOST), tl.float32)
    if REST:
        of_rest = MOST + tl.arange(0, REST)
        rest = tl.zeros((4 * BN, REST), tl.float32)
    values = tl.zeros((BM, BN), tl.float32)
    place = tl.arange(0, 4)[None, :, None]
    for first in range(begin, end, BM):
        m = first + tl.arange(0, BM)
        ok = m < end
        b, oh, ow = m // (OH * OW), (m // OW) % OH, m % OW
        at = m[:, None] * N + n[None, :]
        inside = ok[:, None] & (n < N)[None, :]
        which = tl.load(source + at, mask=inside, other=4)
        value = tl.load(g + at, mask=inside, other=0.0)
        values += tl.where(which == 4, 0.0, value.to(tl.float32))
        value = times(value, SCALE)
        spread = tl.where(which[:, None, :] == place, value[:, None, :], 0.0).to(x.dtype.element_ty)
        spread = tl.trans(tl.reshape(spread, (BM, 4 * BN)))
        at = x + _windows(b, oh, ow, q, H, W, C, WIDTH, STRIDE)
        acc = dot(spread, tl.load(at, mask=ok[:, None] & (q < Q)[None, :], other=0.0), acc, PRECISION)
        if REST:
            at = x + _windows(b, oh, ow, of_rest, H, W, C, WIDTH, STRIDE)
            rest = dot(spread, tl.load(at, mask=ok[:, None] & (of_rest < Q)[None, :], other=0.0), rest, PRECISION)
    column = tl.arange(0, 4 * BN)
    there = (tl.program_id(0) * BN + column % BN < N)[:, None]
    replica = split * tl.num_programs(2) + r
    into = out + (replica * 4 * N + column // BN * N + tl.program_id(0) * BN + column % BN)[:, None] * Q
    tl.store(into + q[None, :], acc, mask=there & (q < Q)[None, :])
    if REST:
        tl.store(into + of_rest[None, :], rest, mask=there & (of_rest < Q)[None, :])
    tl.store(out_bias + replica * N + n, times(tl.sum(values, 0), OF_SUMS), mask=n < N)


@triton.jit(do_not_specialize=["splits"])
def from_windows(
    parts, out, splits, total,
    F: tl.constexpr, C: tl.constexpr, N: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, STRIDE: tl.constexpr,
    OF_PRODUCTS: tl.constexpr, AT_ONCE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[R, N, KH, KW, F]: the sum over splits and places of parts[splits, R, 4, N, KH + STRIDE, KW + STRIDE, C], times
    OF_PRODUCTS."""
    WIDTH: tl.constexpr = KW + STRIDE
    Q: tl.constexpr = (KH + STRIDE) * WIDTH * C
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c, kw, kh = at % F, at // F % KW, at // (F * KW) % KH
    n, r = at // (F * KW * KH) % N, at // (F * KW * KH * N)
    within = (r * 4 * N + n) * Q + (kh * WIDTH + kw) * C + c
    between = total // (F * KW * KH) * 4 * Q
    acc, none = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.int32)
    for first in range(0, splits, AT_ONCE):
        for split in tl.static_range(AT_ONCE):
            there = (at < total) & (none + first + split < splits)
            for sub in tl.static_range(4):
                moved = within + sub * N * Q + (sub // 2 * WIDTH + sub % 2) * STRIDE * C
                acc += tl.load(parts + (first + split) * between + moved, mask=there, other=0.0)
    tl.store(out + at, times(acc, OF_PRODUCTS), mask=at < total)
