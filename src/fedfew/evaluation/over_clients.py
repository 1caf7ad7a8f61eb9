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
    """A score of M clients in a few numbers. NaN means that a client has none (it was absent): it is left out.

    samples: what ``weighted_mean`` weighs the clients by. higher_is_better: False for losses; turns what ``worst_tenth`` is.
    """
    x = _per_client(values, "values")
    if np.isinf(x).any():
        raise ValueError(
            f"values must be finite (or NaN for an absent client), but client {_first(np.isinf(x))} has ±inf. A run has such "
            "scores where training diverged: lower lr, or standardise the targets"
        )
    weights = None if samples is None else _weights(samples, len(x))
    present = ~np.isnan(x)
    x = x[present]
    if len(x) == 0:
        nan = float("nan")
        return Summary(0, nan, nan, nan, nan, None if weights is None else nan, nan, nan)
    worst_first = np.sort(x) if higher_is_better else -np.sort(-x)
    return Summary(
        clients=len(x),
        mean=float(x.mean()),
        std=float(x.std()),
        min=float(x.min()),
        max=float(x.max()),
        weighted_mean=None if weights is None else _weighted_mean(x, weights[present]),
        worst_tenth=float(worst_first[: -(-len(x) // 10)].mean()),
        jain=jain(x),
    )


def jain(values: ArrayLike) -> float:
    """Jain's fairness index (Σx)² / (M Σx²) of values ≥ 0; NaN where one is negative, 1 where all are 0 (all have the same)."""
    x = _per_client(values, "values")
    if x.min() < 0:
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
    return float(np.average(x, weights=weights))


def _first(where: NDArray[np.bool_]) -> int:
    return int(where.argmax())
