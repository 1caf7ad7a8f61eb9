"""The largest answer of every filter in every text, and its gradients, in Triton.

Texts are [R, B, T, D], filters [R, N, WIDEST, D]: all filters of all widths below one another, zero after their width. To the
forward kernel a replica's texts are one text of B·T words: every window begins at some word, and those that reach beyond the end
of their text are computed with the others and passed over in the maximum. So no tile is partly empty, however long a text is. A
tile of words leaves the largest answers of each text that it touches, and a second kernel finds the largest of those.

On the way back one window per filter and text counts. ``met[R, B, N, WIDEST]`` is the word that a part of a filter met there, T
for parts after a filter's width. Every sum is taken by one program in a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fedfew.engines.stacked.kernels.triton_convolution import dot


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _width(n, FILTERS: tl.constexpr, WIDTHS: tl.constexpr):
    """Of each filter: FILTERS[i] of them have WIDTHS[i]."""
    width = tl.zeros_like(n)
    first = 0
    for i in tl.static_range(len(WIDTHS)):
        width = tl.where(n >= first, WIDTHS[i], width)
        first += FILTERS[i]
    return width


@triton.jit(do_not_specialize=["B"])  # or batches of other sizes would be compiled for
def largest_of_tiles(
    x, filters, value, place,
    B, T: tl.constexpr, D: tl.constexpr, N: tl.constexpr, WIDEST: tl.constexpr,
    FILTERS: tl.constexpr, WIDTHS: tl.constexpr, TOUCHED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """value and place[R, tiles, TOUCHED, N]: of the texts that BM words touch, the largest answers and where they begin in their
    text (T: nowhere). One program for BM words and BN filters, next to one another those of the same words.
    Filters are counted from the last: where wider ones come after narrower ones, the tile that is partly empty has few parts."""
    COLUMNS: tl.constexpr = (N + BN - 1) // BN
    r = tl.program_id(1).to(tl.int64)
    tile = tl.program_id(0) // COLUMNS
    n = N - (tl.program_id(0) % COLUMNS + 1) * BN + tl.arange(0, BN)
    width = _width(n, FILTERS, WIDTHS)
    taps = tl.max(width, 0)
    words = tl.arange(0, BM)
    left = B * T - tile * BM
    x += (r * B * T + tile.to(tl.int64) * BM) * D
    filters += r * N * WIDEST * D
    acc = tl.zeros((BM, BN), tl.float32)
    tap, begin = 0, 0
    for _ in range(taps * ((D + BK - 1) // BK)):  # all parts of a window before the next channels: they lie in the cache still
        c = begin + tl.arange(0, BK)
        there = (words + tap < left)[:, None] & (c < D)[None, :]
        a = tl.load(x + ((words + tap) * D)[:, None] + c[None, :], mask=there, other=0.0)
        there = (n >= 0)[None, :] & (c < D)[:, None]
        b = tl.load(filters + ((n * WIDEST + tap) * D)[None, :] + c[:, None], mask=there, other=0.0)
        acc = dot(a, b, acc, PRECISION)
        last = tap + 1 == taps
        tap, begin = tl.where(last, 0, tap + 1), tl.where(last, begin + BK, begin)
    text = tile * BM // T
    out = ((r * (tl.num_programs(0) // COLUMNS) + tile) * TOUCHED) * N + n
    for at in range(TOUCHED):
        word = tile * BM + words - (text + at) * T
        inside = (word >= 0)[:, None] & (word[:, None] + width[None, :] <= T)
        answers = tl.where(inside, acc, float("-inf"))
        most = tl.reduce(answers, 0, _larger)
        found = (answers == most[None, :]) | (answers != answers)  # the first of equals, or the first NaN
        first = tl.min(tl.where(found, word[:, None], T), 0)
        tl.store(value + out + at * N, most, mask=n >= 0)
        tl.store(place + out + at * N, tl.where(most == float("-inf"), T, first), mask=n >= 0)


@triton.jit(do_not_specialize=["B", "tiles"])
def largest_of_texts(
    value, place, out, index,
    B, tiles, T: tl.constexpr, N: tl.constexpr, TOUCHED: tl.constexpr, BM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out and index[R, B, N] from what the tiles left. The first of equals wins, and NaN wins over all."""
    r, b = tl.program_id(2).to(tl.int64), tl.program_id(0)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    most, first = tl.full((BLOCK,), float("-inf"), tl.float32), tl.full((BLOCK,), T, tl.int32)
    for tile in range(b * T // BM, ((b + 1) * T - 1) // BM + 1):
        at = ((r * tiles + tile) * TOUCHED + b - tile * BM // T) * N + n
        v, p = tl.load(value + at, mask=n < N, other=0.0), tl.load(place + at, mask=n < N, other=0)
        later = (p < T) & ((first == T) | (v > most) | ((v != v) & (most == most)))
        most, first = tl.where(later, v, most), tl.where(later, p, first)
    tl.store(out + (r * B + b) * N + n, most, mask=n < N)
    tl.store(index + (r * B + b) * N + n, first, mask=n < N)


@triton.jit(do_not_specialize=["B", "per_split"])
def gradient_of_filters(
    x, g, met, out,
    B, per_split, T: tl.constexpr, D: tl.constexpr, N: tl.constexpr, WIDEST: tl.constexpr, BP: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """out[splits, R, N, WIDEST, D], summed over ``per_split`` texts each. One program for BP parts of filters and BD channels:
    what several of them met in a text is read from the same cache."""
    CHANNELS: tl.constexpr = (D + BD - 1) // BD
    r = tl.program_id(2).to(tl.int64)
    split = tl.program_id(1)
    part = (tl.program_id(0) // CHANNELS) * BP + tl.arange(0, BP)
    d = (tl.program_id(0) % CHANNELS) * BD + tl.arange(0, BD)
    n = part // WIDEST
    begin, end = split * per_split, tl.minimum(split * per_split + per_split, B)
    g += r * B * N + n
    met += r * B * (N * WIDEST) + part
    x += (r * B + begin) * (T * D)
    acc = tl.zeros((BP, BD), tl.float32)
    word = tl.load(met + begin * (N * WIDEST), mask=n < N, other=T)
    value = tl.load(g + begin * N, mask=n < N, other=0.0)
    for b in range(begin, end):
        at = (word.to(tl.int32) * D)[:, None] + d[None, :]
        seen = tl.load(x + at, mask=(word < T)[:, None] & (d < D)[None, :], other=0.0)
        times, after = value, tl.minimum(b + 1, end - 1)
        x += T * D
        word = tl.load(met + after * (N * WIDEST), mask=n < N, other=T)  # of the next text, while this one's words come
        value = tl.load(g + after * N, mask=n < N, other=0.0)
        acc += times[:, None] * seen.to(tl.float32)
    place = ((split * tl.num_programs(2) + r) * (N * WIDEST) + part) * D
    tl.store(out + place[:, None] + d[None, :], acc, mask=(n < N)[:, None] & (d < D)[None, :])


@triton.jit(do_not_specialize=["B"])
def gradient_of_words(
    g, filters, parts, begins, out,
    B, T: tl.constexpr, D: tl.constexpr, N: tl.constexpr, WIDEST: tl.constexpr,
    EACH: tl.constexpr, BP: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """out[R, B, T, D]: for each word the sum over the parts of filters that met it. parts[R, B, N·WIDEST] is sorted by the word
    met, and those of word t begin at begins[R, B, T + 1]. One program for EACH words and BD channels, BP parts at once."""
    CHANNELS: tl.constexpr = (D + BD - 1) // BD
    r = tl.program_id(2).to(tl.int64)
    text = r * B + tl.program_id(0)
    first = (tl.program_id(1) // CHANNELS) * EACH
    d = (tl.program_id(1) % CHANNELS) * BD + tl.arange(0, BD)
    filters += r * N * WIDEST * D
    parts += text * (N * WIDEST)
    begins += text * (T + 1)
    end = tl.load(begins + first)
    for t in range(first, tl.minimum(first + EACH, T)):
        begin, end = end, tl.load(begins + t + 1)
        acc = tl.zeros((BD,), tl.float32)
        for i in range(begin, end, BP):
            at = i + tl.arange(0, BP)
            part = tl.load(parts + at, mask=at < end, other=0)
            value = tl.load(g + text * N + part // WIDEST, mask=at < end, other=0.0)
            row = tl.load(filters + (part * D)[:, None] + d[None, :], mask=(at < end)[:, None] & (d < D)[None, :], other=0.0)
            acc += tl.sum(value[:, None] * row.to(tl.float32), 0)
        tl.store(out + (text * T + t) * D + d, acc, mask=d < D)
