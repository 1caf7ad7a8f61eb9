"""The rule: the fewest models in use whose best run is within two standard errors of the best run of all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedfew.evaluation.choosing_k.measured import Observed, Regret
from fedfew.tasks import CLASSIFICATION, Task

if TYPE_CHECKING:
    from fedfew.evaluation.costs import Cost

Array = NDArray[np.float64]
STANDARD_ERRORS = 2  # one would be too few: the best of all is the least of many noisy numbers


@dataclass(frozen=True)
class Decision:
    """How many models, and by how much other numbers are worse. Arrays go by ``counts``."""

    counts: tuple[int, ...]  # numbers of models in use that occurred
    runs: tuple[Observed, ...]  # the best run of each
    mean: Array  # its validation loss, mean over clients
    best: int  # the number with the least of them
    worse: Array  # how much larger it is than the best's
    error: Array  # standard error of that difference, which is taken client by client
    chosen: int  # the smallest number that is at most two standard errors worse


def decide(runs: Iterable[Observed]) -> Decision:
    """By the runs of all K and seeds.

    What counts is how many models a run uses in the end, not K: with K = 6 a run may use four. Seeds are restarts, of which one
    keeps the best: a run that ends in a bad grouping says nothing about its number of models. Clients are compared with
    themselves, so that hard clients do not count as noise.
    """
    found: dict[int, Observed] = {}
    for run in runs:
        if run.in_use not in found or run.validation.mean() < found[run.in_use].validation.mean():
            found[run.in_use] = run
    counts = tuple(sorted(found))
    table = np.stack([found[count].validation for count in counts])  # [counts, M]
    mean = table.mean(1)
    best = int(mean.argmin())
    difference = table - table[best]
    clients = table.shape[1]
    error = difference.std(1, ddof=1) / np.sqrt(clients) if clients > 1 else np.zeros(len(counts))
    worse = mean - mean[best]
    near = [count for count, above, e in zip(counts, worse, error, strict=True) if above <= STANDARD_ERRORS * e]
    return Decision(counts, tuple(found[count] for count in counts), mean, counts[best], worse, error, near[0])


@dataclass(frozen=True)
class Advice:
    """All that was measured, what follows from it, and the sentences that say so."""

    runs: tuple[Observed, ...]
    regret: Regret
    costs: Mapping[int, Cost]  # by K
    clients: int
    task: Task = CLASSIFICATION

    @property
    def ks(self) -> list[int]:
        return sorted({run.models for run in self.runs})

    @property
    def seeds(self) -> list[int]:
        return sorted({run.seed for run in self.runs})

    @property
    def decision(self) -> Decision:
        return decide(self.runs)

    @property
    def without(self) -> dict[int, int]:
        """What would be chosen without each of the seeds; empty where there is only one."""
        if len(self.seeds) == 1:
            return {}
        return {seed: decide(run for run in self.runs if run.seed != seed).chosen for seed in self.seeds}

    @property
    def alone(self) -> dict[int, int]:
        """What each seed alone would choose."""
        return {seed: decide(run for run in self.runs if run.seed == seed).chosen for seed in self.seeds}

    def using(self, count: int) -> int:
        """How many runs use so many models."""
        return sum(run.in_use == count for run in self.runs)

    def coverage(self, K: int) -> float:
        """(1 − K/M) times the mean over pairs: what the best K models lose at most, on average."""
        return (1 - K / self.clients) * float(np.maximum(0.0, self.regret.mean))

    def sentences(self) -> list[str]:
        d = self.decision
        at = d.counts.index(d.chosen)
        return [self._why(d, at), self._stability(d, at), self._cost(d.chosen), self._theory(d.chosen)]

    def _why(self, d: Decision, at: int) -> str:
        text = f"Take K = {d.chosen}: the best run with so many models in use has a mean validation loss of {d.mean[at]:.3f}, "
        if d.chosen == d.best:
            text += "the least of all"
        else:
            text += f"within {STANDARD_ERRORS} standard errors ({d.error[at]:.3f} each) of the least, "
            text += f"{d.mean.min():.3f} with {d.best}"
        if at > 0:
            below = at - 1
            ratio = d.worse[below] / d.error[below] if d.error[below] > 0 else float("inf")
            text += f"; with {d.counts[below]} it is {d.mean[below]:.3f}, {ratio:.1f} standard errors above the least"
        if d.chosen == self.ks[-1] and len(self.ks) > 1:
            most = min(self.clients, 2 * d.chosen)
            text += f". It is the largest K tried: more may be better still (--ks {self.ks[0]}-{most})"
        return text + "."

    def _stability(self, d: Decision, at: int) -> str:
        others = {seed: chosen for seed, chosen in self.without.items() if chosen != d.chosen}
        if not self.without:
            text = "One seed only: more of them (--seeds 3) would show whether the choice is stable"
        elif others:
            text = ", ".join(f"without seed {seed} it would be {chosen}" for seed, chosen in others.items())
            text = f"The choice is not stable: {text}"
        else:
            text = f"The choice is stable: it is the same without any one of the {len(self.seeds)} seeds"
        best = d.runs[at]
        text += f". {self.using(d.chosen)} of {len(self.runs)} runs use {d.chosen}, the best of them with K = {best.models}"
        if d.chosen > 1:
            text += "; a run may end in a worse grouping, so train several seeds and keep the one with the least validation loss"
        return text + "."

    def _cost(self, K: int) -> str:
        if K not in self.costs:
            return f"What a round with K = {K} costs is not among what was measured: it was not tried."
        cost = self.costs[K]
        words = f"{cost.bytes_up / 1e6:.3g} MB up, {cost.bytes_down / 1e6:.3g} MB down and {cost.steps:.4g} steps"
        return f"A round costs a client {words}."

    def _theory(self, K: int) -> str:
        r = self.regret
        if not np.isfinite(r.mean):
            return "Heterogeneity is not known: models of single clients have infinite losses, their training diverged. Lower lr."
        text = f"Heterogeneity: with another's model a client loses {r.mean:.3g} on average "
        text += f"(Δ_het, the maximum: {r.largest:.3g}; measured"
        text += f" on {len(r.clients)} of {r.total} clients" if len(r.clients) < r.total else ""
        text += "; others' models serve it better than its own" if r.mean < 0 else ""
        return (
            f"{text}). The best K = {K} models lose at most (1 − K/M) times that, {self.coverage(K):.3g}: too loose to choose by."
        )

    def values(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        d, r = self.decision, self.regret
        return {
            "chosen": d.chosen,
            "best": d.best,
            "without_seed": self.without,
            "single_seed": self.alone,
            "why": self.sentences(),
            "models_in_use": {count: self._in_use(d, at) for at, count in enumerate(d.counts)},
            "ks": {K: self._with_k(K) for K in self.ks},
            "heterogeneity": {
                "largest": r.largest,
                "tenth_largest": r.tenth_largest,
                "mean": r.mean,
                "negative": r.negative,
                "clients": len(r.clients),
                "of": r.total,
                "local_validation_loss": float(r.own.mean()),
            },
        }

    def _in_use(self, d: Decision, at: int) -> dict[str, Any]:
        return {
            "validation_loss": float(d.mean[at]),
            "worse": float(d.worse[at]),
            "standard_error": float(d.error[at]),
            f"validation_{self.task.column}": float(np.nanmean(d.runs[at].score)),
            "trained_with": {"models": d.runs[at].models, "seed": d.runs[at].seed},
            "runs": self.using(d.counts[at]),
        }

    def _with_k(self, K: int) -> dict[str, Any]:
        runs = sorted((run for run in self.runs if run.models == K), key=lambda run: run.seed)
        by_seed = {
            run.seed: {
                "validation_loss": float(run.validation.mean()),
                "training_loss": float(run.training.mean()),
                "models_in_use": run.in_use,
            }
            for run in runs
        }
        costs = {name: getattr(self.costs[K], name) for name in ("bytes_up", "bytes_down", "steps")}
        return {"by_seed": by_seed, "coverage": self.coverage(K)} | costs
