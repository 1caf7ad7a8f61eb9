"""Where descent on g ends, is every model Pareto stationary (paper, Theorem 'Pareto Properties', second part)?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedfew.studies.theory.check import FAILS, Check
from fedfew.studies.theory.pareto import distance_to_stationary
from fedfew.studies.theory.problem import (
    Array,
    Problem,
    coefficients,
    combined,
    descended,
    descended_normalised,
    networks,
    shares,
)
from fedfew.studies.theory.quadratic import alike, drawn

CONVERGED = 1e-6  # ‖∇g‖, all models
STATIONARY = 1e-3  # distance of zero from the hull of the clients' gradients


@dataclass(frozen=True)
class Model:
    """One model where descent has ended."""

    weight: float  # Σ_i α_i w[i, k]
    gradient: float  # ‖∇_k g‖
    certificate: float  # ‖Σ_i α_i w[i, k] ∇L_i‖ / Σ_i α_i w[i, k]
    distance: float  # of zero from the hull, over all convex combinations


def looked_at(problem: Problem, models: Array, mu: float) -> list[Model]:
    weights = coefficients(problem, models, mu)
    gradient = np.linalg.norm(combined(problem, models, weights), axis=1)
    certificate = np.linalg.norm(combined(problem, models, shares(problem, models, mu)), axis=1)
    gradients = problem.gradients(models)
    return [
        Model(float(weights[:, k].sum()), float(gradient[k]), float(certificate[k]), distance_to_stationary(gradients[:, k]))
        for k in range(len(models))
    ]


def problems(rng: np.random.Generator) -> Iterator[tuple[Problem, Array, float]]:
    """Quadratic clients, softmax regressions and small networks; K models to start from; μ."""
    for mu in (1.0, 0.3, 0.1):
        for K in (1, 2, 3, 4, 6):
            for groups in (None, 3):
                yield drawn(rng, 8, 3, groups), 2 * rng.normal(size=(K, 3)), mu
    for hidden, K in ((0, 2), (0, 4), (4, 2)):
        problem = networks(rng, 6, hidden)
        yield problem, rng.normal(size=(K, sum(problem.sizes))), 0.1


def starved_by_hand() -> tuple[Problem, Array, float]:
    """Two clients at 0 and 1 and two models, one between them, one at 100: its weights are exp(−4,950/0.01) and less."""
    return alike(np.array([[0.0], [1.0]])), np.array([[0.5], [100.0]]), 0.01


def stationarity(rng: np.random.Generator) -> list[Check]:
    """The theorem on the plain gradient, its sums of weights, and the same with normalised weights."""
    plain: list[list[Model]] = []
    normalised: list[list[Model]] = []
    for problem, start, mu in problems(rng):
        plain.append(looked_at(problem, descended(problem, start, mu), mu))
        normalised.append(looked_at(problem, descended_normalised(problem, start, mu), mu))
    by_hand = looked_at(*starved_by_hand())
    plain.append(by_hand)
    ended = [models for models in plain if max(m.gradient for m in models) <= CONVERGED]
    return [
        _theorem(ended, by_hand[1]),
        _sums(plain),
        _normalised([models for models in normalised if max(m.certificate for m in models) <= CONVERGED], len(normalised)),
    ]


def _theorem(ended: list[list[Model]], starved: Model) -> Check:
    models = [m for each in ended for m in each]
    margin = min(m.certificate - m.distance for m in models)
    kept = [m for m in models if m.weight >= 1e-3]
    by_hand = starved.gradient == 0.0 and starved.distance == 99.0
    return Check(
        name="Pareto stationarity",
        source="Theorem 4.2, part 2",
        printed="∇g = 0 for all k ⇒ 0 ∈ conv{∇L_i(θ_k)} for each k",
        verdict="in exact arithmetic only",
        violations=sum(m.distance > STATIONARY for m in models),
        corrected="dist(0, conv{∇L_i(θ_k)}) ≤ ‖∇_k g‖ / Σ_i α_i w_ik: a model without weight need not be stationary",
        holds=bool(margin >= -1e-9 and all(m.distance <= STATIONARY for m in kept) and by_hand),
        margin=float(margin),
        cases=len(models),
        numbers={
            "weight": [m.weight for m in models],
            "distance": [m.distance for m in models],
            "largest_gradient": max(m.gradient for m in models),
            "largest_distance_with_weight": max(m.distance for m in kept),
            "descents": len(ended),
            "by_hand": {"gradient": starved.gradient, "weight": starved.weight, "distance": starved.distance},
        },
    )


def _sums(plain: list[list[Model]]) -> Check:
    several = [models for models in plain if len(models) > 1]
    weights = [m.weight for models in several for m in models]
    total = max(abs(sum(m.weight for m in models) - 1) for models in plain)
    return Check(
        name="sum of a model's weights",
        source="proof of Theorem 4.2, part 2",
        printed="Σ_i α_i w_ik = 1 for each model",
        verdict=FAILS,
        violations=sum(abs(w - 1) > 1e-6 for w in weights),
        corrected="Σ_k Σ_i α_i w_ik = 1: the sum over clients is a model's share of one step, 1/K on average",
        holds=total < 1e-9,
        margin=1e-9 - total,
        cases=len(weights),
        numbers={"least": min(weights), "mean": float(np.mean(weights)), "most": max(weights), "total_off_by": total},
    )


def _normalised(ended: list[list[Model]], begun: int) -> Check:
    models = [m for each in ended for m in each]
    worst = max(m.distance for m in models)
    return Check(
        name="the same, weights normalised",
        source="this library (normalise)",
        printed="",
        verdict="–",
        violations=0,
        corrected="Σ_i α_i w_ik ∇L_i / Σ_i α_i w_ik = 0 for all k ⇒ each model is Pareto stationary, however small its weight",
        holds=bool(worst <= STATIONARY and len(ended) >= begun / 2),
        margin=STATIONARY - worst,
        cases=len(models),
        numbers={
            "weight": [m.weight for m in models],
            "distance": [m.distance for m in models],
            "converged": len(ended),
            "begun": begun,
        },
    )
