"""How much K models leave wanting (paper, Lemma 'Pareto Coverage Bound', first part of Theorem 3.1)."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from fedfew.studies.theory.check import FAILS, HOLDS, Check
from fedfew.studies.theory.problem import Array, descended_normalised
from fedfew.studies.theory.quadratic import Quadratics, alike, drawn, simplex

MU = 0.1  # of FedFew here; losses are about 1


def worlds(rng: np.random.Generator) -> list[Quadratics]:
    """Clients all over, in groups of equal and unequal sizes, all equally far apart, on a line, and one far away."""
    found = [drawn(rng, M, d) for M in (2, 3, 5, 7) for d in (1, 3) for _ in range(3)]
    found += [drawn(rng, 7, 3, groups, spread) for groups in (2, 3) for spread in (0.0, 0.1, 1.0)]
    found += [simplex(M) for M in (2, 4, 7)]
    found += [alike(np.arange(6.0)[:, None]), alike(np.array([[0.0], [0.1], [0.2], [0.3], [9.0]]))]
    return found


def gaps(rng: np.random.Generator) -> tuple[list[dict[str, float]], float]:
    """One row per set of clients and K: average gaps of the best sets and of FedFew, and what bounds them, divided by Δ_het; and
    the least that FedFew's gap is above the best."""
    rows, below = [], np.inf
    for clients in worlds(rng):
        M, largest, mean = len(clients), clients.delta_het(), clients.mean_regret()
        for K, best in enumerate(clients.best_sets(), start=1):
            fedfew = clients.gap(descended_normalised(clients, _start(rng, clients, K), MU, tolerance=1e-4, most=300))
            gap = clients.gap(best)
            below = min(below, fedfew - gap)
            relative = {"gap": gap / largest, "mean": mean / largest, "fedfew": fedfew / largest}
            rows.append({"M": M, "K": K, "share": K / M} | relative)
    return rows, below


def bound(rng: np.random.Generator) -> list[Check]:
    """The bound as printed, the same with the mean in place of the maximum, and FedFew's own solutions beside the best."""
    rows, below = gaps(rng)
    margin = min(1 - row["share"] - row["gap"] for row in rows)
    sharper = min((1 - row["share"]) * row["mean"] - row["gap"] for row in rows)
    ratios = [row["gap"] / (1 - row["share"]) for row in rows if row["share"] < 1]
    above = sum(row["fedfew"] > 1 - row["share"] for row in rows)
    within = sum(row["fedfew"] <= 1 - row["share"] for row in rows if row["share"] < 1)
    cases, tight = len(rows), discrete()
    return [
        Check(
            name="coverage bound",
            source="Lemma 'Pareto Coverage Bound'",
            printed="for balanced clusters: average gap ≤ (1 − K/M) Δ_het",
            verdict=HOLDS,
            violations=int(margin < -1e-12),
            corrected="for any clients whatever; attained by losses that are 0 or 1",
            holds=bool(margin >= -1e-12 and tight < 1e-12),
            margin=float(margin),
            cases=cases,
            numbers={"rows": rows, "largest_share_of_bound": max(ratios), "median_share_of_bound": float(np.median(ratios))},
        ),
        Check(
            name="coverage bound, sharper",
            source="this library",
            printed="",
            verdict="–",
            violations=0,
            corrected="average gap ≤ (1 − K/M) · mean over pairs i ≠ j of L_i(θ_j*) − L_i(θ_i*)",
            holds=bool(sharper >= -1e-12),
            margin=float(sharper),
            cases=cases,
        ),
        Check(
            name="FedFew's own sets",
            source="Theorem 3.1, as applied to Algorithm 1",
            printed="the bound is for the least sum of losses; FedFew minimises a soft maximum",
            verdict="not covered",
            violations=int(above),
            corrected="at K = M, where the bound is 0, smoothing keeps FedFew above it; below K = M it was within in "
            f"{within} of {len(ratios)} cases",
            holds=bool(below >= -1e-9),
            margin=float(below),
            cases=cases,
            numbers={"above_bound": int(above), "within_below_M": int(within), "below_M": len(ratios), "mu": MU},
        ),
    ]


def _start(rng: np.random.Generator, clients: Quadratics, K: int) -> Array:
    """K models beside the optima of K clients."""
    chosen = rng.choice(len(clients), K, replace=False)
    return clients.optimum[chosen] + 0.1 * rng.normal(size=(K, clients.optimum.shape[1]))


def discrete(most: int = 6) -> float:
    """M models to choose K from, L_i(θ_j) = 1 unless j = i: the least average gap is 1 − K/M itself. How far off is it?"""
    off = 0.0
    for M in range(1, most + 1):
        losses = 1.0 - np.eye(M)
        for K in range(1, M + 1):
            gap = min(float(losses[:, list(chosen)].min(1).mean()) for chosen in combinations(range(M), K))
            off = max(off, abs(gap - (1 - K / M)))
    return off


def tchebycheff(clients: int = 5) -> Check:
    """A set with the least maximum (Eq. 4) whose average gap is above the bound, all clients equally far apart, K = M − 1.

    Two clients must share: at best at their middle, with ½ (√2/2)² = ¼ each; no set has a smaller maximum. The others have models
    of their own, which may lie anywhere with a loss up to ¼, and the maximum is the same: an average of ¼ > (1 − K/M) Δ = 1/M.
    """
    world = simplex(clients)
    least = min(float(world.losses(_shared(world, pair)).min(1).max()) for pair in combinations(range(clients), 2))
    careless = _shared(world, (0, 1))
    for k in range(1, clients - 1):  # each moved away from all others, by √½
        away = careless[k] - world.optimum.mean(0)
        careless[k] = world.optimum[k + 1] + np.sqrt(0.5) * away / np.linalg.norm(away)
    losses = world.losses(careless).min(1)
    limit = (1 - (clients - 1) / clients) * world.delta_het()
    return Check(
        name="sets with the least maximum",
        source="Theorem 3.1 with Eq. 4",
        printed="TCH-Set's optimum has average gap ≤ (1 − K/M) Δ_het",
        verdict=FAILS,
        violations=int(losses.mean() > limit + 1e-12),
        corrected="only its maximum is least: M = 5 equally far apart, K = 4: maximum ¼ and average ¼, the bound is ⅕",
        holds=bool(abs(losses.max() - least) < 1e-12 and abs(losses.mean() - 0.25) < 1e-12 and abs(limit - 1 / clients) < 1e-12),
        margin=float(least - losses.max()),
        cases=1,
        numbers={"average": float(losses.mean()), "bound": limit},
    )


def _shared(world: Quadratics, pair: tuple[int, ...]) -> Array:
    """One model midway between the pair, then each other client's own optimum."""
    others = [i for i in range(len(world)) if i not in pair]
    return np.vstack([world.optimum[list(pair)].mean(0), world.optimum[others]])
