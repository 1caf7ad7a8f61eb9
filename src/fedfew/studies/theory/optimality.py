"""Which optima are Pareto optimal: the paper's lemma on the K-for-M solution, and the first part of 'Pareto Properties'."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedfew.studies.theory.check import FAILS, HOLDS, Check
from fedfew.studies.theory.pareto import dominates, shortest_in_hull
from fedfew.studies.theory.problem import Array, coefficients, descended, objective
from fedfew.studies.theory.quadratic import Quadratics, alike, drawn


@dataclass(frozen=True)
class CounterExample:
    """K models with the least Σ_i min_k L_i(θ_k), one of which is dominated."""

    clients: Quadratics
    models: Array
    dominated: int  # which of them
    by: Array  # the model that dominates it

    def works(self) -> bool:
        losses = self.clients.losses(np.vstack([self.models, self.by]))
        optimal = self.clients.best_sets()[len(self.models) - 1]
        as_good = np.isclose(self.clients.gap(self.models), self.clients.gap(optimal), atol=1e-12)
        return bool(as_good) and dominates(losses[:, -1], losses[:, self.dominated])


def unused_model() -> CounterExample:
    """Two clients want the same; the second of two models serves nobody and may lie anywhere."""
    return CounterExample(alike(np.zeros((2, 1))), np.array([[0.0], [7.0]]), dominated=1, by=np.array([[0.0]]))


def used_model() -> CounterExample:
    """Client 0 does not mind the second coordinate, so (0, 5) is as good to it as any (0, ·); client 1, who has a model of its
    own, would prefer (0, 0)."""
    clients = Quadratics(np.array([np.diag([1.0, 0.0]), np.eye(2)]), np.array([[0.0, 0.0], [3.0, 0.0]]))
    return CounterExample(clients, np.array([[0.0, 5.0], [3.0, 0.0]]), dominated=0, by=np.array([[0.0, 0.0]]))


def lemma(rng: np.random.Generator, cases: int = 20) -> Check:
    """Each model of an optimal set is Pareto optimal: only if a client uses it and its group's optimum is unique."""
    against = [unused_model(), used_model()]
    worst, models = 0.0, 0
    for _ in range(cases):  # strictly convex clients with optima all over: every model is used, every group's optimum unique
        clients = drawn(rng, int(rng.integers(2, 6)), 3)
        for best in clients.best_sets():
            gradients = clients.gradients(best)
            for k in range(len(best)):
                worst = max(worst, float(np.linalg.norm(shortest_in_hull(gradients[:, k])[0])))
                models += 1
    return Check(
        name="optimal sets, model by model",
        source="Lemma 'Pareto Optimality of K-for-M Solution'",
        printed="each θ_k* of Θ*(K) is Pareto optimal",
        verdict=FAILS,
        violations=sum(example.works() for example in against),
        corrected="each θ_k* that a client uses and that is its group's only optimum is; a model nobody uses may lie anywhere",
        holds=worst < 1e-6 and all(example.works() for example in against),
        margin=1e-6 - worst,
        cases=models + len(against),
        numbers={"largest_distance_of_used_models": worst},
    )


def middle_of_two(mu: float) -> float:
    """Clients at −1 and 1 (½(θ ∓ 1)²), two models: the best for g are ∓a with a = tanh(a/μ), both 0 from μ = 1 on.

    g(−a, a) = μ log 2 / S with S = 2 exp(−(1 + a²)/2μ) cosh(a/μ), so dg/da = a − tanh(a/μ).
    """
    a = 1.0
    for _ in range(10_000):
        a = float(np.tanh(a / mu))
    return a


def sets(rng: np.random.Generator) -> Check:
    """As a set, the optimum of the smooth objective is dominated: its models are drawn towards each other at every μ."""
    clients, own = alike(np.array([[-1.0], [1.0]])), np.array([[-1.0], [1.0]])
    mus = (0.2, 0.5, 0.8, 0.95, 1.5, 3.0)
    found, off, dominated = [], 0.0, 0
    for mu in mus:
        starts = [own, *(2 * rng.normal(size=(2, 1)) for _ in range(5))]
        ends = [np.sort(descended(clients, start, mu), axis=0) for start in starts]
        best = min(ends, key=lambda models: objective(clients, models, mu))
        a = middle_of_two(mu)
        off = max(off, objective(clients, np.array([[-a], [a]]), mu) - objective(clients, best, mu), abs(float(best[1, 0]) - a))
        dominated += bool((clients.losses(own).min(1) < clients.losses(best).min(1)).all())
        found.append(a)
    return Check(
        name="optimal sets, as sets",
        source="Theorem 4.2, proof of part 1",
        printed="no set has min_k L_i(θ'_k) < min_k L_i(θ_k*) for all clients i",
        verdict=FAILS,
        violations=dominated,
        corrected="true of TCH-Set only: clients at ±1, K = 2: the smooth optimum is ∓a, a = tanh(a/μ) < 1 (0 from μ = 1 on)",
        holds=off < 1e-4 and dominated == len(mus),
        margin=1e-4 - off,
        cases=len(mus),
        numbers={"mu": list(mus), "a": found},
    )


def replaced(rng: np.random.Generator, cases: int = 300) -> Check:
    """A model replaced by one that dominates it: g falls. So no model of an optimal set is dominated."""
    margin, tried, slack = np.inf, 0, 0.0
    for _ in range(cases):
        clients = drawn(rng, int(rng.integers(2, 7)), 3)
        models, mu = rng.normal(size=(int(rng.integers(1, 5)), 3)), 10.0 ** rng.uniform(-1, 1)
        k = int(rng.integers(len(models)))
        short, _ = shortest_in_hull(clients.gradients(models)[:, k])
        better = models.copy()
        for step in 2.0 ** -np.arange(20):  # a common descent direction: some step along it dominates
            better[k] = models[k] - step * short
            if dominates(clients.losses(better)[:, k], clients.losses(models)[:, k]):
                break
        else:
            continue  # it was Pareto optimal already
        tried += 1
        gain = (clients.losses(models) - clients.losses(better))[:, k]
        fall = objective(clients, models, mu) - objective(clients, better, mu)
        slack = max(slack, -fall)
        if coefficients(clients, models, mu)[:, k] @ gain > 1e-9:  # else rounding decides
            margin = min(margin, fall)
    return Check(
        name="models of a smooth optimum",
        source="Theorem 4.2, part 1",
        printed="all solutions in Θ*_K are Pareto optimal if λ > 0",
        verdict=HOLDS,
        violations=int(slack > 1e-12),
        corrected="for each model by itself: all exp(−L_i(θ_k)/μ) > 0, so a model that is dominated can be bettered",
        holds=bool(margin > 0 and slack <= 1e-12),
        margin=float(margin),
        cases=tried,
    )
