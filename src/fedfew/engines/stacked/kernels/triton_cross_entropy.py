"""The cross-entropy of a stack and its gradient in one pass in Triton.

A sample's loss is Σ_n t[n]·(log Σ exp(z) − z[n]) of its logits z, where t says what every class weighs: 1 − smoothing on the
labels and the rest on all classes alike, times the sample's weight. The gradient is softmax(z)·Σ_n t[n] − t.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["B"])  # or it would be compiled anew for other batches
def cross_entropy(
    logits, log_prior, bias, labels, weight, class_weights, importance, loss, gradient, B,
    N: tl.constexpr, LABELS: tl.constexpr, SMOOTHING: tl.constexpr,
    PRIOR: tl.constexpr, BIAS: tl.constexpr, CLASS_WEIGHTS: tl.constexpr, IMPORTANCE: tl.constexpr,
    BB: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """loss[R] and gradient[R, B, N] of logits[R, B, N] + log_prior[R, N] + bias[R, N] for labels, weight and importance
    [R, B, LABELS] and class_weights[R, N]. One program sums the samples of a replica in their order, BB at a time."""
    r = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, BN)
    known = n < N
    if PRIOR:
        prior = tl.load(log_prior + r * N + n, mask=known, other=0.0)
    if BIAS:
        of_layer = tl.load(bias + r * N + n, mask=known, other=0.0)
    if CLASS_WEIGHTS:
        of_class = tl.load(class_weights + r * N + n, mask=known, other=0.0)
        weighs = tl.zeros((BB,), tl.float32)
        for first in range(0, B, BB):
            b = first + tl.arange(0, BB)
            for label in tl.static_range(LABELS):
                at = (r * B + b) * LABELS + label
                y = tl.load(labels + at, mask=b < B, other=0)
                weighs += tl.load(weight + at, mask=b < B, other=0.0) * tl.load(class_weights + r * N + y)
        of_class = of_class / tl.sum(weighs, 0)
    summed = tl.zeros((BB,), tl.float32)
    for first in range(0, B, BB):
        b = first + tl.arange(0, BB)
        inside = (b < B)[:, None] & known[None, :]
        place = (r * B + b)[:, None] * N + n[None, :]
        z = tl.load(logits + place, mask=inside, other=0.0)
        if BIAS:
            z += of_layer[None, :]
        if PRIOR:
            z += prior[None, :]
        z = tl.where(known[None, :], z, float("-inf"))
        t = tl.zeros((BB, BN), tl.float32)
        for label in tl.static_range(LABELS):
            at = (r * B + b) * LABELS + label
            y = tl.load(labels + at, mask=b < B, other=0)
            count = tl.load(weight + at, mask=b < B, other=0.0)
            if IMPORTANCE:
                count *= tl.load(importance + at, mask=b < B, other=0.0)
            t += tl.where(n[None, :] == y[:, None], (1 - SMOOTHING) * count[:, None], 0.0)
            if SMOOTHING > 0:
                t += tl.where(known[None, :], (SMOOTHING / N) * count[:, None], 0.0)
        if CLASS_WEIGHTS:
            t *= of_class[None, :]
        z -= tl.max(z, 1)[:, None]
        exp = tl.exp(z)
        total = tl.sum(exp, 1)
        summed += tl.sum(t * tl.where(t != 0, tl.log(total)[:, None] - z, 0.0), 1)  # 0·∞ would be NaN
        tl.store(gradient + place, exp * (tl.sum(t, 1) / total)[:, None] - t, mask=inside)
    tl.store(loss + r, tl.sum(summed, 0))
