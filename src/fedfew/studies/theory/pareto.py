"""Pareto stationarity: is zero in the convex hull of the clients' gradients?"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def shortest_in_hull(gradients: Array) -> tuple[Array, Array]:
    """The point nearest to zero in the convex hull of gradients [M, d], and the weights ≥ 0 of sum 1 that make it.

    min ‖Σ_i p_i g_i‖² over p ≥ 0 and Σ p = 1, as a non-negative least-squares problem: one more row asks for the sum. Scaling p
    does not change what is minimised but for that row, so its solution, divided by its sum, is the one sought (Wolfe 1976).
    """
    from scipy.optimize import nnls

    scale = float(np.abs(gradients).max())
    if scale == 0:
        return np.zeros(gradients.shape[1]), np.full(len(gradients), 1 / len(gradients))
    rows = np.vstack([gradients.T / scale, np.ones(len(gradients))])
    solution, _ = nnls(rows, np.append(np.zeros(gradients.shape[1]), 1.0), maxiter=100 * len(gradients))
    p = solution / solution.sum()
    return p @ gradients, p


def distance_to_stationary(gradients: Array) -> float:
    """‖the shortest vector in the hull‖: 0 where a model is Pareto stationary."""
    return float(np.linalg.norm(shortest_in_hull(gradients)[0]))


def dominates(better: Array, worse: Array) -> bool:
    """Losses [M] that are nowhere larger and somewhere smaller."""
    return bool((better <= worse).all() and (better < worse).any())
