"""Clients whose losses are quadratic, so that every optimum is known: L_i(θ) = ½ (θ − θ_i*)ᵀ A_i (θ − θ_i*)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Quadratics:
    """M clients in d dimensions. The least loss of each is 0, at its own optimum."""

    curvature: Array  # A, [M, d, d], symmetric, no eigenvalue negative
    optimum: Array  # θ*, [M, d]

    def __len__(self) -> int:
        return len(self.optimum)

    def losses(self, models: Array) -> Array:
        """L[i, k] of models [K, d]."""
        offset = models[None] - self.optimum[:, None]
        return 0.5 * np.einsum("ikd,ide,ike->ik", offset, self.curvature, offset)

    def gradients(self, models: Array) -> Array:
        """∇L_i(θ_k), [M, K, d]."""
        return np.einsum("ide,ike->ikd", self.curvature, models[None] - self.optimum[:, None])

    def regret(self) -> Array:
        """L_i(θ_j*) − L_i(θ_i*), [M, M]: what client i loses with j's optimum. Its maximum is the paper's Δ_het."""
        return self.losses(self.optimum)

    def delta_het(self) -> float:
        return float(self.regret().max())

    def mean_regret(self) -> float:
        """The mean of the same over ordered pairs of different clients."""
        M = len(self)
        return float(self.regret().sum() / (M * (M - 1)))

    def group_optimum(self, group: list[int]) -> Array:
        """The one model that minimises the group's total loss; the shortest of them where there are several."""
        total = self.curvature[group].sum(0)
        pull = np.einsum("ide,ie->d", self.curvature[group], self.optimum[group])
        return np.linalg.lstsq(total, pull, rcond=None)[0]

    def best_sets(self) -> list[Array]:
        """For K = 1 … M the K models with the least Σ_i min_k L_i(θ_k): exact, by dynamic programming over groups of clients.

        A best set serves some partition of the clients, and each of its models is its group's optimum; so the search is over
        partitions: the group of the first client that is left, then the best for the rest. 3^M steps, for M ≤ 10 or so.
        """
        M = len(self)
        models, cost = {}, {}
        for mask in range(1, 1 << M):
            group = [i for i in range(M) if mask >> i & 1]
            models[mask] = self.group_optimum(group)
            cost[mask] = float(self.losses(models[mask][None])[group].sum())
        best: dict[tuple[int, int], tuple[float, list[int]]] = {(0, 0): (0.0, [])}
        for groups in range(1, M + 1):
            for mask in range(1, 1 << M):
                first = mask & -mask
                found: tuple[float, list[int]] | None = None
                rest = mask ^ first
                part = rest
                while True:  # every subset of the rest joins the first client
                    before = best.get((groups - 1, rest ^ part))
                    if before is not None and (found is None or before[0] + cost[first | part] < found[0]):
                        found = before[0] + cost[first | part], [*before[1], first | part]
                    if part == 0:
                        break
                    part = (part - 1) & rest
                if found is not None:
                    best[groups, mask] = found
        everyone = (1 << M) - 1
        return [np.stack([models[mask] for mask in best[K, everyone][1]]) for K in range(1, M + 1)]

    def gap(self, models: Array) -> float:
        """The average over clients of min_k L_i(θ_k) − L_i(θ_i*)."""
        return float(self.losses(models).min(1).mean())


def drawn(rng: np.random.Generator, clients: int, dimensions: int, groups: int | None = None, spread: float = 0.1) -> Quadratics:
    """Random clients: optima all over, or (``groups``) near that many centres; curvatures between about 0.1 and 10."""
    if groups is None:
        optimum = rng.normal(size=(clients, dimensions))
    else:
        centres = 2 * rng.normal(size=(groups, dimensions))
        optimum = centres[np.arange(clients) % groups] + spread * rng.normal(size=(clients, dimensions))
    turned, _ = np.linalg.qr(rng.normal(size=(clients, dimensions, dimensions)))
    eigenvalues = 10 ** rng.uniform(-1, 1, size=(clients, dimensions))
    return Quadratics(np.einsum("ide,ie,ife->idf", turned, eigenvalues, turned), optimum)


def alike(optimum: Array) -> Quadratics:
    """Clients that differ in their optima only: A_i = I."""
    M, d = optimum.shape
    return Quadratics(np.broadcast_to(np.eye(d), (M, d, d)).copy(), optimum.astype(np.float64))


def simplex(clients: int) -> Quadratics:
    """All clients equally far from each other: optima at the unit vectors, so L_i(θ_j*) = 1 for all i ≠ j."""
    return alike(np.eye(clients))
