"""Whether two methods differ, judged over seeds: the same seeds, so pairs.

Two tests, since few seeds carry little information: Student's paired t-test, which assumes normal differences, and the exact
sign-flip permutation test, which assumes only that without a difference both signs are equally likely. Of n
seeds there are 2ⁿ sign patterns, so the latter's p cannot go below 2/2ⁿ: with 3 seeds never below 0.25.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

LEAST_SEEDS = 3
EXACT_SEEDS = 12  # up to 4096 patterns are gone through one by one
DRAWN_PATTERNS = 20_000  # beyond, as many are drawn


@dataclass(frozen=True)
class Paired:
    """The differences a − b over seeds."""

    seeds: int
    difference: float  # mean of a − b
    low: float | None  # 95 % interval of the mean difference, by Student's t; None where all differences are the same
    high: float | None
    t_test: float | None  # two-sided p; None where all differences are the same but not 0: no spread to judge by
    sign_flips: float  # two-sided p


def paired(a: Sequence[float], b: Sequence[float]) -> Paired:
    """Compare two methods by their values on the same seeds, in the same order."""
    if len(a) != len(b):
        raise ValueError(f"a and b must hold the same seeds, but have {len(a)} and {len(b)}")
    if len(a) < LEAST_SEEDS:
        raise ValueError(f"a paired test needs at least {LEAST_SEEDS} seeds, not {len(a)}")
    from scipy import stats

    if not np.isfinite([*a, *b]).all():
        raise ValueError("a and b must hold finite numbers: what is NaN or infinite on a seed cannot be compared on it")
    d = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    n, mean = len(d), float(d.mean())
    error = float(d.std(ddof=1)) / math.sqrt(n)
    flips = sign_flip_p(d.tolist())
    if error <= 1e-12 * max(1.0, float(np.abs(d).max())):  # the same on every seed
        return Paired(n, mean, None, None, 1.0 if abs(mean) <= 1e-12 else None, flips)
    half = float(stats.t.ppf(0.975, n - 1)) * error
    p = 2 * float(stats.t.sf(abs(mean) / error, n - 1))
    return Paired(n, mean, mean - half, mean + half, p, flips)


def sign_flip_p(differences: Sequence[float]) -> float:
    """The share of sign patterns whose mean is at least as far from 0 as the one seen; exact up to 12 differences."""
    d = np.asarray(differences, dtype=np.float64)
    if len(d) <= EXACT_SEEDS:
        signs = np.array(list(product((1.0, -1.0), repeat=len(d))))
        return float(_as_far(signs, d).mean())
    signs = np.random.default_rng(0).choice((1.0, -1.0), size=(DRAWN_PATTERNS, len(d)))
    return float((1 + _as_far(signs, d).sum()) / (1 + DRAWN_PATTERNS))  # the pattern seen counts among those drawn


def _as_far(signs: NDArray[np.float64], d: NDArray[np.float64]) -> NDArray[np.bool_]:
    seen = abs(d.sum())
    return np.abs(signs @ d) >= seen - 1e-9 * max(1.0, seen)  # sums in another order differ in the last digits


def least_p(seeds: int) -> float:
    """The smallest p that the sign-flip test can give."""
    return 2.0 ** (1 - seeds)


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Holm's correction for as many tests as there are p-values; None stays None and counts for nothing."""
    known = sorted((p, i) for i, p in enumerate(ps) if p is not None)
    corrected: list[float | None] = [None] * len(ps)
    largest = 0.0
    for place, (p, i) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - place) * p))
        corrected[i] = largest
    return corrected
