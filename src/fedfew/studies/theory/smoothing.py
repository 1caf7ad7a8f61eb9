"""How far the smooth scalarization is from the one it smooths (paper, Theorem 'Uniform Smooth Approximation')."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from fedfew.scalarization import stch_set, tch_set
from fedfew.studies.theory.check import FAILS, HOLDS, Check

CASES = 3000
ROUNDING = 1e-12  # of a difference of losses, relative to their size


@dataclass(frozen=True)
class Case:
    """One matrix of losses and one μ; lower and upper are where TCH − STCH may lie, in units of μ."""

    clients: int
    models: int
    mu: float
    size: float  # of the losses, for what rounding can do
    difference: float  # TCH-Set − STCH-Set

    @property
    def scaled(self) -> float:
        return self.difference / self.mu

    @property
    def slack(self) -> float:
        """ROUNDING, in units of μ."""
        return ROUNDING * max(1.0, self.size / self.mu)

    @property
    def margin(self) -> float:
        """Distance to the nearer of −log M and log K, in units of μ: negative where the bound is broken."""
        return min(self.scaled + np.log(self.clients), np.log(self.models) - self.scaled)

    @property
    def breaks_printed(self) -> bool:
        """The paper's TCH − STCH ≤ 0 (its lower end, −μ log M − μ log K, is lower than need be and so holds)."""
        return self.scaled > self.slack


def measured(losses: torch.Tensor, mu: float) -> Case:
    M, K = losses.shape
    return Case(M, K, mu, float(losses.abs().max()), float(tch_set(losses) - stch_set(losses, mu)))


def cases(rng: np.random.Generator) -> Iterator[Case]:
    """Random matrices over six decades of μ and of size, with ties, outliers and equal rows, M and K up to a few hundred."""
    for number in range(CASES):
        M, K = (int(np.exp(rng.uniform(0, np.log(300)))) for _ in range(2))
        mu, size = 10.0 ** rng.uniform(-6, 2), 10.0 ** rng.uniform(-3, 3)
        losses = rng.exponential(size, size=(M, K))
        if number % 5 == 1:
            losses = np.round(losses / size) * size  # ties
        elif number % 5 == 2:
            losses[:] = losses[:1]  # all clients alike
        elif number % 5 == 3:
            losses[:] = losses[:, :1]  # all models alike
        elif number % 5 == 4:
            losses[rng.integers(M)] *= 1e3  # one client far worse than the others
        yield measured(torch.from_numpy(losses), mu)


def attained(clients: int, models: int, mu: float) -> tuple[Case, Case]:
    """Both ends of the bound, by hand.

    Lower: one client in M differs from none and each has one model far better than the rest, so every soft minimum is the
    minimum and the soft maximum of M equal numbers is μ log M too high. Upper: all models alike for each client, and one client
    far worse than the rest, so the soft maximum is the maximum and each soft minimum is μ log K too low.
    """
    far = 1e3 * mu
    lower = torch.full((clients, models), far, dtype=torch.float64)
    lower[:, 0] = 0.0
    upper = torch.zeros(clients, models, dtype=torch.float64)
    upper[0] = far
    return measured(lower, mu), measured(upper, mu)


def bound(rng: np.random.Generator) -> Check:
    """−μ log M ≤ TCH − STCH ≤ μ log K, against the paper's signs."""
    tried = list(cases(rng))
    ends = [attained(M, K, mu) for M in (1, 2, 7, 50) for K in (1, 2, 5, 20) for mu in (1e-3, 0.1, 10.0)]
    off = max(max(abs(low.scaled + np.log(low.clients)), abs(high.scaled - np.log(high.models))) for low, high in ends)
    tried += [case for pair in ends for case in pair]
    holds = all(case.margin >= -case.slack for case in tried) and off < 1e-9
    return Check(
        name="smoothing bound",
        source="Theorem 4.1 (uniform smooth approximation), supplement's inequalities",
        printed="−μ log M − μ log K ≤ g_TCH − g_STCH ≤ 0",
        verdict=FAILS,
        violations=sum(case.breaks_printed for case in tried),
        corrected="−μ log M ≤ g_TCH − g_STCH ≤ μ log K, both ends attained",
        holds=holds,
        margin=min(case.margin + case.slack for case in tried),
        cases=len(tried),
        numbers={
            "scaled": [case.scaled for case in tried],
            "log_clients": [float(np.log(case.clients)) for case in tried],
            "log_models": [float(np.log(case.models)) for case in tried],
            "attained_within": off,
            "margin_unit": "μ",
        },
    )


def limit(rng: np.random.Generator, matrices: int = 60) -> Check:
    """|TCH − STCH| → 0 with μ, uniformly: never above μ max(log M, log K)."""
    mus = 10.0 ** np.arange(-8, 2)
    worst = np.zeros(len(mus))
    margin = np.inf
    for _ in range(matrices):
        M, K = int(rng.integers(1, 40)), int(rng.integers(1, 40))
        losses = torch.from_numpy(rng.exponential(size=(M, K)))
        for at, mu in enumerate(mus):
            case = measured(losses, float(mu))
            worst[at] = max(worst[at], abs(case.difference))
            margin = min(margin, max(np.log(M), np.log(K)) - abs(case.scaled) + case.slack)
    return Check(
        name="limit μ → 0",
        source="Theorem 4.1, main text",
        printed="g_STCH → g_TCH uniformly, error O(μ log M + μ log K)",
        verdict=HOLDS,
        violations=int(margin < 0),
        corrected="error ≤ μ max(log M, log K)",
        holds=bool(margin >= 0 and worst[0] < 1e-6),
        margin=float(margin),
        cases=matrices * len(mus),
        numbers={"mu": mus.tolist(), "worst": worst.tolist(), "margin_unit": "μ"},
    )
