"""A score of many clients in a few numbers: mean, spread, worst clients, fairness. Formulas and choices: ``docs/scores.md``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Summary:
    """One score over clients; NaN throughout where no client has it."""

    clients: int  # how many were counted: those whose value is not NaN
    mean: float
    std: float  # population: divided by the number of clients
    min: float
    max: float
    weighted_mean: float | None  # by number of samples; None where these were not given
    worst_tenth: float  # mean of the ⌈M/10⌉ worst clients
    jain: float  # (Σx)² / (M Σx²): 1/M where one client has everything, 1 where all have the same


def summarise(values: ArrayLike, samples: ArrayLike | None = None, *, higher_is_better: bool = True) -> Summary:
    """A score of M clients in a few numbers. NaN means that a client has none (it was absent): it is left out. An infinite one
    counts (a run has such scores where training diverged): the mean is infinite then, and std and Jain's index are NaN.

    samples: what ``weighted_mean`` weighs the clients by. higher_is_better: False for losses; turns what ``worst_tenth`` is.
    """
    x = _per_client(values, "values")
    weights = None if samples is None else _weights(samples, len(x))
    present = ~np.isnan(x)
    x = x[present]
    if len(x) == 0:
        nan = float("nan")
        return Summary(0, nan, nan, nan, nan, None if weights is None else nan, nan, nan)
    worst_first = np.sort(x) if higher_is_better else -np.sort(-x)
    return Summary(
        clients=len(x),
        mean=mean_of(x),
        std=std_of(x),
        min=float(x.min()),
        max=float(x.max()),
        weighted_mean=None if weights is None else _weighted_mean(x, weights[present]),
        worst_tenth=mean_of(worst_first[: -(-len(x) // 10)]),
        jain=jain(x),
    )


def mean_of(x: Array, weights: Array | None = None) -> float:
    """Infinite where a value is; NaN where there are both +∞ and −∞."""
    with np.errstate(invalid="ignore"):
        return float(np.average(x, weights=weights))


def std_of(x: Array, less: int = 0) -> float:
    """Divided by the number of values less this; NaN where a value is infinite."""
    return float(x.std(ddof=less)) if np.isfinite(x).all() else float("nan")


def jain(values: ArrayLike) -> float:
    """Jain's fairness index (Σx)² / (M Σx²) of values ≥ 0; NaN where one is negative or infinite, 1 where all are 0 (all have the
    same)."""
    x = _per_client(values, "values")
    if x.min() < 0 or x.max() == np.inf:
        return float("nan")
    if x.max() == 0:
        return 1.0
    x = x / x.max()  # the index does not depend on the scale, but squares of very small or large numbers would be lost
    return float(x.sum() ** 2 / (len(x) * np.square(x).sum()))


def _per_client(values: ArrayLike, name: str) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) == 0:
        raise ValueError(f"{name} must hold one number per client, shape [M] with M ≥ 1, not {list(array.shape)}")
    return array


def _weights(samples: ArrayLike, clients: int) -> Array:
    weights = _per_client(samples, "samples")
    if len(weights) != clients:
        raise ValueError(f"samples has {len(weights)} clients, but values has {clients}")
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        raise ValueError(f"samples must be finite and ≥ 0, but client {_first(wrong)} has {weights[wrong][0]:g}")
    return weights


def _weighted_mean(x: Array, weights: Array) -> float:
    if weights.sum() == 0:
        raise ValueError("samples are 0 for every client that has a value: there is nothing to weigh by")
    return mean_of(x[weights > 0], weights[weights > 0])


def _first(where: NDArray[np.bool_]) -> int:
    return int(where.argmax())
