"""Convolutions of a stack in which every replica has its own weights: implicit matrix products in Triton.

Images are laid out [R, B, H, W, C], filters [R, N, KH, KW, C]. For one row of a filter, what a patch holds (KW·C numbers) lies
in one piece, so patches are read where they are and never written out. With POOL the 2×2 maximum and ReLU happen in registers:
only the pooled image is written, and for each of its pixels which of the four it came from (4: none, ReLU cut it off). The two
gradients read that back. Sizes of images are constants, so that dividing by them takes a multiplication. In float16 gradients
are stored scaled (see :mod:`scaling`): what is computed from them is multiplied by OF_PRODUCTS and OF_SUMS.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def dot(a, b, acc, PRECISION: tl.constexpr):
    """acc + a·b, both factors as a is stored and, of float32, in the precision asked for; the sum in float32."""
    return tl.dot(a, b.to(a.dtype), acc, input_precision=PRECISION)


@triton.jit
def times(a, FACTOR: tl.constexpr):
    """a · FACTOR."""
    return a if FACTOR == 1 else a * FACTOR


@triton.jit
def largest(a, b, c, d):
    """The largest of four and which it is. The first of equals wins and NaN wins over all, as in PyTorch."""
    later = (b > a) | (b != b)
    a, which = tl.where(later, b, a), tl.where(later, 1, 0)
    later = (c > a) | (c != c)
    a, which = tl.where(later, c, a), tl.where(later, 2, which)
    later = (d > a) | (d != d)
    return tl.where(later, d, a), tl.where(later, 3, which)


@triton.jit
def _pixels(x, b, row, column, j, ok, H, W, C: tl.constexpr, J: tl.constexpr, PADDED: tl.constexpr):
    """Numbers j of the patches' row that begins at (row, column) of image b, zero outside of the image: [patches, j]."""
    inside = ok[:, None] & (j < J)[None, :]
    if PADDED:
        at = column[:, None] + (j // C)[None, :]
        inside = inside & ((row >= 0) & (row < H))[:, None] & (at >= 0) & (at < W)
    return tl.load(x + (((b * H + row) * W + column) * C)[:, None] + j[None, :], mask=inside, other=0.0)


@triton.jit(do_not_specialize=["B"])  # or batches of other sizes, as of samples that are scored, would be compiled for
def forward(
    x, weight, bias, out, source,
    B, per_pixel, per_filter,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    C: tl.constexpr, N: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    STRIDE: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    POOL: tl.constexpr, BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out[R, B, OH, OW, N]: a tile of BM positions × BN filters of one replica. With POOL, OH × OW is the pooled image.

    Within an image of the output, neighbouring pixels are ``per_pixel`` apart and neighbouring filters ``per_filter``.
    """
    r = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    J: tl.constexpr = KW * C
    STEPS: tl.constexpr = (J + BK - 1) // BK
    PADDED: tl.constexpr = PAD_H + PAD_W > 0
    ok = m < B * OH * OW
    b, oh, ow = m // (OH * OW), (m // OW) % OH, m % OW
    x += r * B * H * W * C
    weight += r * N * KH * J
    spread: tl.constexpr = 2 if POOL else 1
    row, column = oh * (spread * STRIDE) - PAD_H, ow * (spread * STRIDE) - PAD_W
    acc = tl.zeros((BM, BN), tl.float32)
    if POOL:
        acc1 = tl.zeros((BM, BN), tl.float32)
        acc2 = tl.zeros((BM, BN), tl.float32)
        acc3 = tl.zeros((BM, BN), tl.float32)
    for step in range(KH * STEPS):
        kh = step // STEPS
        j = (step % STEPS) * BK + tl.arange(0, BK)
        w = tl.load(weight + (n * (KH * J) + kh * J)[None, :] + j[:, None], mask=(j < J)[:, None] & (n < N)[None, :], other=0.0)
        acc = dot(_pixels(x, b, row + kh, column, j, ok, H, W, C, J, PADDED), w, acc, PRECISION)
        if POOL:
            acc1 = dot(_pixels(x, b, row + kh, column + STRIDE, j, ok, H, W, C, J, PADDED), w, acc1, PRECISION)
            acc2 = dot(_pixels(x, b, row + kh + STRIDE, column, j, ok, H, W, C, J, PADDED), w, acc2, PRECISION)
            acc3 = dot(_pixels(x, b, row + kh + STRIDE, column + STRIDE, j, ok, H, W, C, J, PADDED), w, acc3, PRECISION)
    inside = ok[:, None] & (n < N)[None, :]
    if POOL:
        acc, which = largest(acc, acc1, acc2, acc3)
    if BIAS:
        acc += tl.load(bias + r * N + n, mask=n < N, other=0.0)[None, :]
    if POOL:
        at = r * B * OH * OW * N + m[:, None] * N + n[None, :]
        tl.store(source + at, tl.where(acc <= 0, 4, which).to(tl.int8), mask=inside)
        acc = tl.where(acc <= 0, 0.0, acc)
    image = (r * B + b) * (OH * OW * N) + (m % (OH * OW)) * per_pixel
    tl.store(out + image[:, None] + (n * per_filter)[None, :], acc, mask=inside)


@triton.jit
def weight_gradient(
    x, g, source, out, out_bias,
    B, per_split,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    PIXEL: tl.constexpr, C: tl.constexpr, N: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    STRIDE: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BQ: tl.constexpr, PRECISION: tl.constexpr,
    SCALE: tl.constexpr, OF_SUMS: tl.constexpr, OF_PRODUCTS: tl.constexpr,
):  # fmt: skip
    """out[splits, R, N, KH·KW·C] and out_bias[splits, R, N]: sums over ``per_split`` pixels of the pooled gradient
    g[R, B, OH, OW, N] each. The image's pixels are PIXEL numbers apart. g is a factor when it is SCALE times as large."""
    Q: tl.constexpr = KH * KW * C
    TILES: tl.constexpr = (Q + BQ - 1) // BQ
    PADDED: tl.constexpr = PAD_H + PAD_W > 0
    r = tl.program_id(2).to(tl.int64)
    split = tl.program_id(1)
    q = (tl.program_id(0) % TILES) * BQ + tl.arange(0, BQ)
    n = (tl.program_id(0) // TILES) * BN + tl.arange(0, BN)
    kh, j = q // (KW * C), q % (KW * C)
    total = B * OH * OW
    x += r * B * H * W * PIXEL
    g += r * total * N
    source += r * total * N
    begin = split * per_split
    end = tl.minimum(begin + per_split, total)
    acc = tl.zeros((BQ, BN), tl.float32)
    values = tl.zeros((BM, BN), tl.float32)  # summed over its first axis once, at the end
    for first in range(begin, end, BM):
        m = first + tl.arange(0, BM)
        ok = m < end
        b, oh, ow = m // (OH * OW), (m // OW) % OH, m % OW
        at = m[:, None] * N + n[None, :]
        inside = ok[:, None] & (n < N)[None, :]
        which = tl.load(source + at, mask=inside, other=4)
        value = tl.where(which == 4, 0.0, tl.load(g + at, mask=inside, other=0.0))
        values += value.to(tl.float32)
        value = times(value, SCALE)
        for sub in tl.static_range(4):
            row = (oh * 2 + sub // 2) * STRIDE - PAD_H
            column = (ow * 2 + sub % 2) * STRIDE - PAD_W
            valid = ok[:, None] & (q < Q)[None, :]
            if PADDED:
                high, across = row[:, None] + kh[None, :], column[:, None] + (j // C)[None, :]
                valid = valid & (high >= 0) & (high < H) & (across >= 0) & (across < W)
            at = (((b * H + row) * W + column) * PIXEL)[:, None] + (kh * W * PIXEL + j // C * PIXEL + j % C)[None, :]
            patch = tl.load(x + at, mask=valid, other=0.0)
            acc = dot(tl.trans(patch), tl.where(which == sub, value, 0.0), acc, PRECISION)
    place = split * tl.num_programs(2) + r
    tl.store(out + (place * N + n)[None, :] * Q + q[:, None], times(acc, OF_PRODUCTS), mask=(q < Q)[:, None] & (n < N)[None, :])
    if tl.program_id(0) % TILES == 0:
        tl.store(out_bias + place * N + n, times(tl.sum(values, 0), OF_SUMS), mask=n < N)


@triton.jit(do_not_specialize=["B", "per_split"])
def weight_gradient_by_pixel(
    x, g, out,
    B, per_split,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    C: tl.constexpr, N: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    STRIDE: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BQ: tl.constexpr, OF_PRODUCTS: tl.constexpr,
):  # fmt: skip
    """out[splits, R, N, KH·KW·C]: sums over ``per_split`` pixels of g[R, B, OH, OW, N] each, where factors take 16 bits."""
    Q: tl.constexpr = KH * KW * C
    TILES: tl.constexpr = (Q + BQ - 1) // BQ
    r = tl.program_id(2).to(tl.int64)
    split = tl.program_id(1)
    q = (tl.program_id(0) % TILES) * BQ + tl.arange(0, BQ)
    n = (tl.program_id(0) // TILES) * BN + tl.arange(0, BN)
    kh, j = q // (KW * C), q % (KW * C)
    total = B * OH * OW
    x += r * B * H * W * C
    g += r * total * N
    begin = split * per_split
    end = tl.minimum(begin + per_split, total)
    acc = tl.zeros((BN, BQ), tl.float32)
    for first in range(begin, end, BM):
        m = first + tl.arange(0, BM)
        ok = m < end
        b, oh, ow = m // (OH * OW), (m // OW) % OH, m % OW
        row, column = oh * STRIDE - PAD_H, ow * STRIDE - PAD_W
        valid = ok[:, None] & (q < Q)[None, :]
        if PAD_H + PAD_W > 0:
            high, across = row[:, None] + kh[None, :], column[:, None] + (j // C)[None, :]
            valid = valid & (high >= 0) & (high < H) & (across >= 0) & (across < W)
        patch = tl.load(x + (((b * H + row) * W + column) * C)[:, None] + (kh * W * C + j)[None, :], mask=valid, other=0.0)
        value = tl.load(g + m[:, None] * N + n[None, :], mask=ok[:, None] & (n < N)[None, :], other=0.0)
        acc = tl.dot(tl.trans(value), patch, acc)
    place = (split * tl.num_programs(2) + r) * N + n
    tl.store(out + place[:, None] * Q + q[None, :], times(acc, OF_PRODUCTS), mask=(n < N)[:, None] & (q < Q)[None, :])


@triton.jit
def samples_last(
    x, out, sums, B,
    H: tl.constexpr, W: tl.constexpr, PIXEL: tl.constexpr,
    C: tl.constexpr, S: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    SUM: tl.constexpr, OF_SUMS: tl.constexpr, BB: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """out[R, C, H + 2 PAD_H, W + 2 PAD_W, S] from x[R, B, H, W, C], whose pixels are PIXEL numbers apart; zero in
    the padding and where S exceeds B. With SUM also sums[(H + 2 PAD_H)·(W + 2 PAD_W), R, C] over the samples, times OF_SUMS."""
    r = tl.program_id(2).to(tl.int64)
    width = W + 2 * PAD_W
    row, column = tl.program_id(0) // width - PAD_H, tl.program_id(0) % width - PAD_W
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    present = tl.where((row >= 0) & (row < H) & (column >= 0) & (column < W), B, 0)
    summed = tl.zeros((BC,), tl.float32)
    for first in range(0, S, BB):
        b = first + tl.arange(0, BB)
        at = r * B * H * W * PIXEL + (((b * H + row) * W + column) * PIXEL)[:, None] + c[None, :]
        value = tl.load(x + at, mask=(b < present)[:, None] & (c < C)[None, :], other=0.0)
        place = ((r * C + c) * (H + 2 * PAD_H) * width + tl.program_id(0)) * S
        tl.store(out + place[:, None] + b[None, :], tl.trans(value), mask=(c < C)[:, None] & (b < S)[None, :])
        if SUM:
            summed += tl.sum(value.to(tl.float32), 0)
    if SUM:
        tl.store(sums + (tl.program_id(0) * tl.num_programs(2) + r) * C + c, times(summed, OF_SUMS), mask=c < C)


@triton.jit(do_not_specialize=["per_split"])  # or it would be compiled anew for few clients
def weight_gradient_by_sample(
    x, g, out,
    per_split,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr,
    S: tl.constexpr, OW: tl.constexpr, C: tl.constexpr, N: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, STRIDE: tl.constexpr,
    BT: tl.constexpr, BN: tl.constexpr, BQ: tl.constexpr, PRECISION: tl.constexpr, OF_PRODUCTS: tl.constexpr,
):  # fmt: skip
    """out[splits, R, N, KH·KW·C] from x[R, C, H, W, S] (padded) and g[R, N, OH, OW, S].

    With the samples last, a row of the output and what it meets in the image both lie in one piece: long runs to sum over.
    """
    Q: tl.constexpr = C * KH * KW
    TILES: tl.constexpr = (Q + BQ - 1) // BQ
    RUN: tl.constexpr = OW * S
    PARTS: tl.constexpr = (RUN + BT - 1) // BT
    r = tl.program_id(2).to(tl.int64)
    split = tl.program_id(1)
    q = (tl.program_id(0) % TILES) * BQ + tl.arange(0, BQ)
    n = (tl.program_id(0) // TILES) * BN + tl.arange(0, BN)
    x += r * C * H * W * S
    g += r * N * OH * RUN
    begins = ((q % C * H + q // (KW * C)) * W + q // C % KW) * S
    begin = split * per_split
    acc = tl.zeros((BQ, BN), tl.float32)
    for step in range(begin * PARTS, tl.minimum(begin + per_split, OH) * PARTS):
        row = step // PARTS
        t = (step % PARTS) * BT + tl.arange(0, BT)
        along = t if STRIDE == 1 else t // S * (STRIDE * S) + t % S
        patch = tl.load(
            x + begins[:, None] + (row * STRIDE * W * S + along)[None, :], mask=(q < Q)[:, None] & (t < RUN)[None, :], other=0.0
        )
        value = tl.load(g + ((n * OH + row) * RUN)[None, :] + t[:, None], mask=(n < N)[None, :] & (t < RUN)[:, None], other=0.0)
        acc = dot(patch, value, acc, PRECISION)
    place = (split * tl.num_programs(2) + r) * N + n
    tl.store(out + place[None, :] * Q + q[:, None], times(acc, OF_PRODUCTS), mask=(q < Q)[:, None] & (n < N)[None, :])


@triton.jit
def input_gradient(
    g, weight, out,
    B,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    C: tl.constexpr, N: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    STRIDE: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr, ROWS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr, OF_PRODUCTS: tl.constexpr,
):  # fmt: skip
    """out[R, B, H, W, C] from g[R, B, OH, OW, N] and weights [R, C, KH, KW, N].

    A program works on ROWS rows of the image (one, unless the stride is 1) and on columns of one remainder modulo the stride,
    sorted by column and then by sample, so that whole tiles agree on which taps of the filter reach the output, and no others are
    visited. Rows share what they read of g; where a filter does not reach all of them, it is zero for the others. The product's
    rows are ROWS × BN channels, of which Hopper's tensor cores take 64.
    """
    r = tl.program_id(2).to(tl.int64)
    TILES: tl.constexpr = (C + BN - 1) // BN
    i = tl.arange(0, ROWS * BN)
    n, below = (tl.program_id(1) % TILES) * BN + i % BN, i // BN
    line = tl.program_id(1) // TILES
    ih, remainder = line // STRIDE * ROWS, line % STRIDE
    columns = (W - remainder + STRIDE - 1) // STRIDE
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    ok = m < columns * B
    b = m % B
    iw = (m // B) * STRIDE + remainder
    leftmost = (tl.program_id(0) * BM // B) * STRIDE + remainder + PAD_W
    rightmost = (tl.minimum(tl.program_id(0) * BM + BM, columns * B) - 1) // B * STRIDE + remainder + PAD_W
    top = ih + PAD_H
    low_h = tl.maximum(1 - ROWS, top - STRIDE * (OH - 1))
    low_h += (top - low_h) % STRIDE
    taps_h = tl.maximum(0, (tl.minimum(KH - 1, top) - low_h + STRIDE) // STRIDE)
    low_w = tl.maximum(0, leftmost - STRIDE * (OW - 1))
    low_w += (leftmost - low_w) % STRIDE
    taps_w = tl.maximum(0, (tl.minimum(KW - 1, rightmost) - low_w + STRIDE) // STRIDE)
    STEPS: tl.constexpr = (N + BK - 1) // BK
    g += r * B * OH * OW * N
    weight += r * N * KH * KW * C
    acc = tl.zeros((ROWS * BN, BM), tl.float32)
    for step in range(taps_h * taps_w * STEPS):
        o = (step % STEPS) * BK + tl.arange(0, BK)
        tap = step // STEPS
        first, kw = low_h + tap // taps_w * STRIDE, low_w + tap % taps_w * STRIDE  # of the first row's filters
        oh, ow, kh = (top - first) // STRIDE, (iw + PAD_W - kw) // STRIDE, first + below
        reaches = ok & (iw + PAD_W >= kw) & (ow < OW)
        at = (((b * OH + oh) * OW + ow) * N)[:, None] + o[None, :]
        value = tl.load(g + at, mask=reaches[:, None] & (o < N)[None, :], other=0.0)
        there = (n < C) & (kh >= 0) & (kh < KH)
        w = tl.load(
            weight + (((n * KH + kh) * KW + kw) * N)[:, None] + o[None, :], mask=there[:, None] & (o < N)[None, :], other=0.0
        )
        acc = dot(w.to(value.dtype), tl.trans(value), acc, PRECISION)
    at = r * B * H * W * C + ((b * H + ih) * W + iw)[None, :] * C + (below * (W * C) + n)[:, None]
    tl.store(out + at, times(acc, OF_PRODUCTS), mask=ok[None, :] & ((n < C) & (ih + below < H))[:, None])
