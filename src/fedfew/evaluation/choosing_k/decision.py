"""The rule: the fewest models whose validation loss is within one standard error of the least."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedfew.evaluation.choosing_k.measured import Observed, Regret

if TYPE_CHECKING:
    from fedfew.evaluation.costs import Cost

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Decision:
    """Which K, and by how much the others are worse. Arrays go by ``ks``."""

    ks: tuple[int, ...]
    mean: Array  # validation loss, mean over clients and seeds
    best: int  # the K with the least of them
    worse: Array  # how much larger it is than the best's
    error: Array  # standard error of that difference, which is taken client by client and seed by seed
    chosen: int  # the smallest K that is at most one standard error worse


def decide(losses: Mapping[int, Array]) -> Decision:
    """By the validation losses [seeds, clients] of each K.

    Every client and every seed is compared with itself, so that hard clients do not count as noise. The square of the standard
    error has a part for clients (variance over clients of the mean over seeds, / M) and one for seeds (the reverse, / S).
    """
    ks = tuple(sorted(losses))
    table = np.stack([np.atleast_2d(losses[K]) for K in ks])  # [K, S, M]
    mean = table.mean((1, 2))
    best = int(mean.argmin())
    difference = table - table[best]
    error = np.sqrt(_squared_error(difference.mean(1)) + _squared_error(difference.mean(2)))
    worse = mean - mean[best]
    chosen = min(K for K, above, e in zip(ks, worse, error, strict=True) if above <= e)
    return Decision(ks, mean, ks[best], worse, error, chosen)


def _squared_error(values: Array) -> Array:
    """Variance of the mean over the last axis; 0 where there is only one value."""
    n = values.shape[-1]
    return values.var(-1, ddof=1) / n if n > 1 else np.zeros(values.shape[:-1])


def statistical_fit(gaps: Mapping[int, float]) -> tuple[float, float]:
    """(s, R²) of the least-squares fit s·√K to the gap between validation and training loss, K by K.

    The theorem's statistical error is c·√(K d / n) with c and the effective d unknown: s is all of c·√(d/n), fitted. R² says how
    well the form fits: below 0, worse than a constant. s is 0 where validation losses are below training losses.
    """
    K, gap = np.array(list(gaps), dtype=np.float64), np.array(list(gaps.values()))
    s = max(0.0, float((np.sqrt(K) @ gap) / K.sum()))
    spread = float(np.square(gap - gap.mean()).sum())
    return s, 1 - float(np.square(gap - s * np.sqrt(K)).sum()) / spread if spread > 0 else float("nan")


@dataclass(frozen=True)
class Advice:
    """All that was measured, what follows from it, and the sentences that say so."""

    runs: tuple[Observed, ...]
    regret: Regret
    costs: Mapping[int, Cost]
    clients: int

    @property
    def losses(self) -> dict[int, Array]:
        """Validation losses [S, M] by K."""
        return {K: np.stack([r.validation for r in self._with(K)]) for K in sorted({r.models for r in self.runs})}

    def _with(self, K: int) -> list[Observed]:
        return sorted((r for r in self.runs if r.models == K), key=lambda r: r.seed)

    @property
    def decision(self) -> Decision:
        return decide(self.losses)

    @property
    def seeds(self) -> list[int]:
        return sorted({r.seed for r in self.runs})

    @property
    def by_seed(self) -> dict[int, int]:
        """What each seed alone would say."""
        losses = self.losses
        return {seed: decide({K: rows[s] for K, rows in losses.items()}).chosen for s, seed in enumerate(self.seeds)}

    def accuracy(self, K: int) -> float:
        return float(np.mean([r.accuracy.mean() for r in self._with(K)]))

    def in_use(self, K: int) -> float:
        return float(np.mean([r.in_use for r in self._with(K)]))

    @property
    def gaps(self) -> dict[int, float]:
        """Validation less training loss of the served models, by K."""
        return {K: float(np.mean([(r.validation - r.training).mean() for r in self._with(K)])) for K in self.losses}

    def coverage(self, K: int) -> float:
        """(1 − K/M) times the mean over pairs: measured."""
        return (1 - K / self.clients) * max(0.0, self.regret.mean)

    def statistical(self, K: int) -> float:
        """s·√K: fitted."""
        return statistical_fit(self.gaps)[0] * K**0.5

    @property
    def by_theory(self) -> int:
        """The K for which the two terms together are least."""
        return min(self.losses, key=lambda K: self.coverage(K) + self.statistical(K))

    def sentences(self) -> list[str]:
        d = self.decision
        at = d.ks.index(d.chosen)
        return [self._why(d, at), self._use(d.chosen), self._cost(d), self._theory()]

    def _why(self, d: Decision, at: int) -> str:
        text = f"Take K = {d.chosen}: "
        if d.chosen == d.best:
            text += f"its mean validation loss, {d.mean[at]:.3f}, is the least"
        else:
            text += f"its mean validation loss, {d.mean[at]:.3f}, is within one standard error ({d.error[at]:.3f}) of the least, "
            text += f"{d.mean.min():.3f} at K = {d.best}"
        if at > 0:
            below = at - 1
            ratio = d.worse[below] / d.error[below] if d.error[below] > 0 else float("inf")
            text += f"; with K = {d.ks[below]} it is {d.mean[below]:.3f}, {ratio:.1f} standard errors above the least"
        if d.chosen == d.ks[-1] and len(d.ks) > 1:
            text += f". It is the largest K tried: more may be better still (--ks {d.ks[0]}-{min(self.clients, 2 * d.chosen)})"
        return text + "."

    def _use(self, K: int) -> str:
        alone = list(self.by_seed.values())
        if len(alone) == 1:
            stability = "one seed only: more of them (--seeds 3) would show whether the choice is stable"
        elif len(set(alone)) == 1:
            stability = f"each of {len(alone)} seeds alone says K = {alone[0]}"
            stability += ", too: the choice is stable" if alone[0] == K else ""
        else:
            stability = f"seeds alone say {', '.join(map(str, alone))}: the choice is not stable"
        if K == 1:
            return stability[0].upper() + stability[1:] + "."
        used = self.in_use(K)
        text = f"Of {K} models {used:.3g} are in use" + (" (mean over seeds)" if len(alone) > 1 else "")
        if used < K:
            text += ": those that nobody uses need not be kept"
        return f"{text}; {stability}."

    def _cost(self, d: Decision) -> str:
        def in_words(K: int) -> str:
            cost = self.costs[K]
            return f"{cost.bytes_up / 1e6:.3g} MB up, {cost.bytes_down / 1e6:.3g} MB down and {cost.steps:.4g} steps"

        compared = f" (K = {d.best}: {in_words(d.best)})" if d.best != d.chosen else ""
        return f"A round costs a client {in_words(d.chosen)}{compared}."

    def _theory(self) -> str:
        r, (s, fit) = self.regret, statistical_fit(self.gaps)
        text = (
            f"Theory: with another's model a client loses {r.mean:.3g} on average (Δ_het, the maximum: {r.largest:.3g}; measured"
        )
        text += f" on {len(r.clients)} of {r.total} clients" if len(r.clients) < r.total else ""
        text += "; others' models serve it better than its own" if r.mean < 0 else ""
        text += f"); {s:.2g}·√K is fitted to the gap between validation and training loss"
        text += "" if fit >= 0.5 else f", which does not grow so (R² {fit:.2g})" if fit == fit else ""
        text += f". The bound (1 − K/M)·{max(0.0, r.mean):.3g} + {s:.2g}·√K is least at K = {self.by_theory}"
        if self.by_theory != self.decision.chosen:
            text += "; being a bound, it is too loose to choose by"
        return text + "."

    def values(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        d, r, (s, fit) = self.decision, self.regret, statistical_fit(self.gaps)
        return {
            "chosen": d.chosen,
            "best": d.best,
            "by_seed": self.by_seed,
            "why": self.sentences(),
            "ks": {
                K: {
                    "validation_loss": float(d.mean[at]),
                    "worse": float(d.worse[at]),
                    "standard_error": float(d.error[at]),
                    "validation_accuracy": self.accuracy(K),
                    "by_seed": {run.seed: float(run.validation.mean()) for run in self._with(K)},
                    "train_validation_gap": self.gaps[K],
                    "models_in_use": self.in_use(K),
                    "coverage": self.coverage(K),
                    "statistical": self.statistical(K),
                    "bytes_up": self.costs[K].bytes_up,
                    "bytes_down": self.costs[K].bytes_down,
                    "steps": self.costs[K].steps,
                }
                for at, K in enumerate(d.ks)
            },
            "heterogeneity": {
                "largest": r.largest,
                "tenth_largest": r.tenth_largest,
                "mean": r.mean,
                "negative": r.negative,
                "clients": len(r.clients),
                "of": r.total,
                "local_validation_loss": float(r.own.mean()),
            },
            "statistical_fit": {"s": s, "r_squared": fit},
            "by_theory": self.by_theory,
        }
