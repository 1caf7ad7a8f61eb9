"""BatchNorm of a stack in training, and its gradients, in Triton: each two passes over the batch.

A batch is [R, B·P, C] in memory: B samples of P positions, channels last. The first pass leaves what each part of a replica's
rows adds to the sums over them; in the second, every program adds these parts up in the same order. A sample that weighs nothing
does not count in mean and variance, but is normalised by them, so that its gradient is in theirs.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _that_count(weight, m, inside, P: tl.constexpr, WEIGHTED: tl.constexpr):
    """Which of the rows m belong to a sample that weighs something."""
    if WEIGHTED:
        inside = inside & (tl.load(weight + m // P, mask=inside, other=0.0) > 0)
    return inside


@triton.jit
def _parts(parts, r, which: tl.constexpr, of: tl.constexpr, splits, c, C: tl.constexpr, MOST: tl.constexpr):
    """parts[r, which, :, c] of parts[R, of, splits, C]: [MOST, channels], zero beyond the splits."""
    split = tl.arange(0, MOST)
    at = ((r * of + which) * splits + split)[:, None] * C + c[None, :]
    return tl.load(parts + at, mask=(split < splits)[:, None] & (c < C)[None, :], other=0.0)


@triton.jit(do_not_specialize=["B", "per_split"])  # or it would be compiled anew for other batches
def measure(
    x, weight, parts, B, per_split,
    P: tl.constexpr, C: tl.constexpr, WEIGHTED: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """parts[R, 3, splits, C]: how many rows of x[R, B·P, C] count, their mean and their squared distances from it, over
    ``per_split`` rows each. Every place of a tile follows its own rows by Welford's method, which loses nothing where the mean is
    large beside the deviation."""
    r = tl.program_id(2).to(tl.int64)
    split, splits = tl.program_id(0), tl.num_programs(0)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    x += r * B * P * C
    begin = split * per_split
    end = tl.minimum(begin + per_split, B * P)
    count = tl.zeros((BM,), tl.float32)
    mean = tl.zeros((BM, BC), tl.float32)
    squares = tl.zeros((BM, BC), tl.float32)
    for first in range(begin, end, BM):
        m = first + tl.arange(0, BM)
        counts = _that_count(weight + r * B, m, m < end, P, WEIGHTED)
        one = counts.to(tl.float32)
        count += one
        value = tl.load(x + m[:, None] * C + c[None, :], mask=counts[:, None] & (c < C)[None, :], other=0.0)
        off = value - mean
        mean += off * (one / tl.maximum(count, 1.0))[:, None]
        squares += off * (value - mean) * one[:, None]
    n = tl.sum(count, 0)
    whole = tl.sum(mean * count[:, None], 0) / tl.maximum(n, 1.0)
    off = mean - whole[None, :]
    squared = tl.sum(squares + off * off * count[:, None], 0)
    place = parts + (r * 3 * splits + split) * C + c
    tl.store(place, tl.zeros((BC,), tl.float32) + n, mask=c < C)
    tl.store(place + splits * C, whole, mask=c < C)
    tl.store(place + 2 * splits * C, squared, mask=c < C)


@triton.jit(do_not_specialize=["B", "per_split", "splits"])
def normalise(
    x, parts, scale, bias, running_mean, running_var, shares, out, statistics, moved, B, per_split, splits, share, eps,
    P: tl.constexpr, C: tl.constexpr, SCALE: tl.constexpr, BIAS: tl.constexpr, RUNNING: tl.constexpr, SHARES: tl.constexpr,
    BM: tl.constexpr, BC: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """out[R, B·P, C] of x and its parts; statistics[R, 3, C]: mean, 1 / deviation and number of values; moved[R, 2, C]: the
    running mean and variance [R, C] moved by the share, or each replica's of shares[R]."""
    r = tl.program_id(2).to(tl.int64)
    split = tl.program_id(0)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    known = c < C
    counts = _parts(parts, r, 0, 3, splits, c, C, MOST)
    means = _parts(parts, r, 1, 3, splits, c, C, MOST)
    n = tl.where(known, tl.sum(counts, 0), 1.0)
    mean = tl.sum(counts * means, 0) / n
    off = means - mean[None, :]
    squared = tl.sum(_parts(parts, r, 2, 3, splits, c, C, MOST) + counts * off * off, 0)
    inverse = tl.rsqrt(squared / n + eps)
    if split == 0:
        place = statistics + r * 3 * C + c
        tl.store(place, mean, mask=known)
        tl.store(place + C, inverse, mask=known)
        tl.store(place + 2 * C, n, mask=known)
        if RUNNING:
            if SHARES:
                share = tl.load(shares + r)
            before = tl.load(running_mean + r * C + c, mask=known, other=0.0)
            tl.store(moved + r * 2 * C + c, (1 - share) * before + share * mean, mask=known)
            before = tl.load(running_var + r * C + c, mask=known, other=0.0)
            unbiased = squared / tl.where(n == 1, 1.0, n - 1)
            tl.store(moved + (r * 2 + 1) * C + c, (1 - share) * before + share * unbiased, mask=known)
    factor = inverse
    if SCALE:
        factor *= tl.load(scale + r * C + c, mask=known, other=0.0)
    if BIAS:
        shift = tl.load(bias + r * C + c, mask=known, other=0.0)
    x += r * B * P * C
    out += r * B * P * C
    begin = split * per_split
    end = tl.minimum(begin + per_split, B * P)
    for first in range(begin, end, BM):
        m = first + tl.arange(0, BM)
        at, inside = m[:, None] * C + c[None, :], (m < end)[:, None] & known[None, :]
        value = (tl.load(x + at, mask=inside, other=0.0) - mean[None, :]) * factor[None, :]
        if BIAS:
            value += shift[None, :]
        tl.store(out + at, value, mask=inside)


@triton.jit(do_not_specialize=["B", "per_split"])
def measure_gradient(g, x, statistics, parts, B, per_split, P: tl.constexpr, C: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr):
    """parts[R, 2, splits, C]: the sums of g[R, B·P, C] and of g times the normalised x, over ``per_split`` rows each."""
    r = tl.program_id(2).to(tl.int64)
    split, splits = tl.program_id(0), tl.num_programs(0)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    known = c < C
    mean = tl.load(statistics + r * 3 * C + c, mask=known, other=0.0)
    inverse = tl.load(statistics + (r * 3 + 1) * C + c, mask=known, other=0.0)
    x += r * B * P * C
    g += r * B * P * C
    begin = split * per_split
    end = tl.minimum(begin + per_split, B * P)
    total = tl.zeros((BM, BC), tl.float32)
    product = tl.zeros((BM, BC), tl.float32)
    for first in range(begin, end, BM):
        m = first + tl.arange(0, BM)
        at, inside = m[:, None] * C + c[None, :], (m < end)[:, None] & known[None, :]
        gradient = tl.load(g + at, mask=inside, other=0.0)
        total += gradient
        product += gradient * ((tl.load(x + at, mask=inside, other=0.0) - mean[None, :]) * inverse[None, :])
    place = parts + (r * 2 * splits + split) * C + c
    tl.store(place, tl.sum(total, 0), mask=known)
    tl.store(place + splits * C, tl.sum(product, 0), mask=known)


@triton.jit(do_not_specialize=["B", "per_split", "splits"])
def gradient(
    g, x, weight, scale, statistics, parts, of_x, of_scale, of_bias, B, per_split, splits,
    P: tl.constexpr, C: tl.constexpr, WEIGHTED: tl.constexpr, SCALE: tl.constexpr,
    BM: tl.constexpr, BC: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """The gradients of_x[R, B·P, C], of_scale[R, C] and of_bias[R, C]. Those rows that count also moved mean and variance."""
    r = tl.program_id(2).to(tl.int64)
    split = tl.program_id(0)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    known = c < C
    total = tl.sum(_parts(parts, r, 0, 2, splits, c, C, MOST), 0)
    product = tl.sum(_parts(parts, r, 1, 2, splits, c, C, MOST), 0)
    if split == 0:
        tl.store(of_bias + r * C + c, total, mask=known)
        tl.store(of_scale + r * C + c, product, mask=known)
    mean = tl.load(statistics + r * 3 * C + c, mask=known, other=0.0)
    inverse = tl.load(statistics + (r * 3 + 1) * C + c, mask=known, other=0.0)
    n = tl.load(statistics + (r * 3 + 2) * C + c, mask=known, other=1.0)
    factor = inverse
    if SCALE:
        factor *= tl.load(scale + r * C + c, mask=known, other=0.0)
    total, product = total / n, product / n
    x += r * B * P * C
    g += r * B * P * C
    of_x += r * B * P * C
    begin = split * per_split
    end = tl.minimum(begin + per_split, B * P)
    for first in range(begin, end, BM):
        m = first + tl.arange(0, BM)
        at, inside = m[:, None] * C + c[None, :], (m < end)[:, None] & known[None, :]
        counts = _that_count(weight + r * B, m, m < end, P, WEIGHTED)
        value = (tl.load(x + at, mask=inside, other=0.0) - mean[None, :]) * inverse[None, :]
        through = tl.where(counts[:, None], total[None, :] + value * product[None, :], 0.0)
        tl.store(of_x + at, (tl.load(g + at, mask=inside, other=0.0) - through) * factor[None, :], mask=inside)
