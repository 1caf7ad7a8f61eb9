"""What finite samples cost (paper, Lemma 'Statistical Convergence', second part of Theorem 3.1): linear regression clients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedfew.studies.theory.check import FAILS, HOLDS, Check
from fedfew.studies.theory.problem import Array
from fedfew.studies.theory.quadratic import Quadratics, alike

NOISE = 0.5


@dataclass(frozen=True)
class Sampled:
    """Clients y = xᵀθ_i* + noise with x ~ N(0, I): the expected loss is ½‖θ − θ_i*‖², but for a constant."""

    population: Quadratics

    def draw(self, rng: np.random.Generator, samples: int) -> Quadratics:
        """The empirical losses of n samples each. They are quadratic again, around the least-squares fit, but for a constant."""
        M, d = self.population.optimum.shape
        x = rng.normal(size=(M, samples, d))
        y = np.einsum("ind,id->in", x, self.population.optimum) + NOISE * rng.normal(size=(M, samples))
        second = np.einsum("ind,ine->ide", x, x) / samples
        pull = np.einsum("ind,in->id", x, y) / samples
        return Quadratics(second, np.linalg.solve(second, pull[..., None])[..., 0])


def clients(rng: np.random.Generator, groups: int = 3, each: int = 2, dimensions: int = 4) -> Sampled:
    """Groups that want exactly the same, far from one another."""
    return Sampled(alike(np.repeat(2 * rng.normal(size=(groups, dimensions)), each, axis=0)))


def excess(world: Sampled, rng: np.random.Generator, samples: int, draws: int) -> Array:
    """For K = 1 … M: the average expected loss with the sets that are best on n samples, less that with the best sets; [M]."""
    best = np.array([world.population.gap(models) for models in world.population.best_sets()])
    found = [[world.population.gap(models) for models in world.draw(rng, samples).best_sets()] for _ in range(draws)]
    return np.asarray(found).mean(0) - best


def slope(x: Array, y: Array) -> float:
    """The exponent b of the power law y ∝ x^b that fits best."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def rate(rng: np.random.Generator) -> Check:
    """Does the excess grow as √(K d / n)?"""
    draws = 24
    world = clients(rng)
    M, d = world.population.optimum.shape
    samples = np.array([8, 16, 32, 64, 128, 256, 512])
    table = np.array([excess(world, rng, int(n), draws) for n in samples])  # [n, K]
    in_n = [slope(samples[2:], table[2:, K]) for K in range(M)]
    in_k = slope(np.arange(3, M + 1), table[2:, 2:].mean(0))  # from the three true groups on
    over_bound = table / np.sqrt(np.arange(1, M + 1)[None] * d / samples[:, None])
    falls = over_bound[-1] < over_bound[0]
    pooled = 3 * d * NOISE**2 / (2 * samples[2:] * M)  # three groups, three models
    off = np.abs(np.log(table[2:, 2] / pooled)).max()
    return Check(
        name="statistical error",
        source="Lemma 'Statistical Convergence', Theorem 3.1",
        printed="excess loss ≤ O(√(K d / n)), here with n samples for every client",
        verdict=HOLDS,
        violations=int((~falls).sum()),
        corrected="here it falls as 1/n; with a model for each group it is K d σ² / (2 n M): a group's clients add samples",
        holds=bool(falls.all() and max(in_n) < -0.5 and off < 0.5),
        margin=-0.5 - max(in_n),
        cases=int(table.size) * draws,
        numbers={
            "samples": samples.tolist(),
            "excess": table.T.tolist(),
            "exponent_of_n": in_n,
            "exponent_of_K_from_3": in_k,
            "log_off_pooled": float(off),
            "d": d,
            "M": M,
            "noise": NOISE,
        },
    )


def two_optima(rng: np.random.Generator) -> Check:
    """The lemma's absolute values: clients at −1, 0, 1 and K = 2 have two best sets, and samples decide which is found.

    Gaps (⅛, ⅛, 0) or (0, ⅛, ⅛): an average of |differences| of 1/12 whenever the other set is found, for however many samples.
    """
    draws = 40
    world = Sampled(alike(np.array([[-1.0], [0.0], [1.0]])))
    fixed = world.population.losses(np.array([[-0.5], [1.0]])).min(1)
    absolute: dict[int, float] = {}
    signed: dict[int, float] = {}
    for samples in (100, 10_000, 1_000_000):
        found = []
        for _ in range(draws):
            drawn = alike(world.population.optimum + NOISE * rng.normal(size=(3, 1)) / np.sqrt(samples))  # A_i = I: n ≫ d
            found.append(world.population.losses(drawn.best_sets()[1]).min(1) - fixed)
        absolute[samples] = float(np.abs(found).mean(1).mean())
        signed[samples] = float(np.mean(found))
    stays, vanishes = min(absolute.values()), signed[1_000_000]
    return Check(
        name="statistical error, absolute",
        source="Lemma 'Statistical Convergence'",
        printed="average of |min_k L_i(θ_k) − min_k L_i(θ_k*)| → 0 with n",
        verdict=FAILS,
        violations=sum(value > 0.01 for value in absolute.values()),
        corrected="the average without |·| does: the empirical set is best for the sum, not for each client",
        holds=bool(stays > 0.02 and abs(vanishes) < 1e-4),
        margin=1e-4 - abs(vanishes),
        cases=3 * draws,
        numbers={"absolute": absolute, "signed": signed},
    )


def unequal(rng: np.random.Generator, draws: int = 200) -> Check:
    """The printed n is the mean over clients. K = M = 2 and n = (2, N): the first client's error stays while the bound vanishes.

    Each client wants the mean of a normal distribution, so its own model's excess loss is ½·NOISE²/n_i on average: NOISE²/4 for
    the first, whatever N is. What holds needs no K: a minimum over models moves by no more than the loss that moves most.
    """
    large = [10**2, 10**4, 10**6, 10**8]
    ratio: dict[int, float] = {}
    margin = np.inf
    for samples in large:
        n = np.array([2, samples])
        error = NOISE * rng.normal(size=(draws, 2)) / np.sqrt(n)
        ratio[samples] = float((0.5 * error**2).mean() / np.sqrt(2 / n.mean()))
    for _ in range(draws):
        expected = rng.exponential(size=(5, 12))  # clients under all models that there are
        empirical = expected + rng.normal(size=expected.shape) * rng.exponential()
        models = rng.choice(12, size=int(rng.integers(1, 12)), replace=False)
        moved = np.abs(expected[:, models].min(1) - empirical[:, models].min(1))
        margin = min(margin, float((np.abs(expected - empirical).max(1) - moved).min()))
    violations = sum(value > 1 for value in ratio.values())
    return Check(
        name="statistical error, unequal clients",
        source="Lemma 'Statistical Convergence', Theorem 3.1",
        printed="excess loss ≤ c·√(K d / n) with n the mean number of samples",
        verdict=FAILS,
        violations=violations,
        corrected="|min_k L_i − min_k L̂_i| ≤ sup|L_i − L̂_i|: a bound by each client's own samples, without K",
        holds=bool(margin >= 0 and violations and ratio[large[-1]] > 50 * ratio[large[0]]),
        margin=margin,
        cases=(len(large) + 1) * draws,
        numbers={"over_bound": ratio},
    )
