"""The history of a run in a few numbers: the last and the best round, and how clients and models were weighted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfew.evaluation.over_clients import summarise
from fedfew.training.history import History

Array = NDArray[np.float64]


@dataclass(frozen=True)
class WeightDiagnostics:
    """How a method weighs clients and models, an array [S] over the scored rounds; None where the method has no such weights."""

    round: NDArray[np.int64]
    entropy: Array | None  # −Σ_k w log w, mean over clients: 0 where each counts for one model only, log K where for all alike
    largest: Array | None  # max_k w, mean over clients: 1 … 1/K
    alpha_cv: Array | None  # std of α over clients / its mean: 0 where all clients count alike
    models_in_use: NDArray[np.int64]  # distinct choices that are known (sites may keep theirs to themselves: −1); 1 where clients
    # are served one candidate, be it shared or their own


def weight_diagnostics(history: History) -> WeightDiagnostics:
    """The paper's diagnostics of w and α (supplement, sensitivity to μ), each over the clients that took part in the round."""
    _require_rounds(history)
    entropy = largest = cv = None
    if "w" in history.columns:
        w = history["w"].astype(np.float64)
        entropy = np.nanmean(-(w * np.log(np.where(w > 0, w, 1.0))).sum(2), axis=1)
        largest = np.nanmean(w.max(2), axis=1)
    if "alpha" in history.columns:
        alpha = history["alpha"].astype(np.float64)
        cv = np.nanstd(alpha, axis=1) / np.nanmean(alpha, axis=1)
    in_use = np.array([len(np.unique(choice[choice >= 0])) for choice in history["choice"]])
    return WeightDiagnostics(history["round"], entropy, largest, cv, in_use)


@dataclass(frozen=True)
class RoundScore:
    """Mean test scores (accuracy, R², …) over clients in one round, by its number."""

    round: int
    served: float
    adapted: float


@dataclass(frozen=True)
class LastAndBest:
    last: RoundScore
    best_served: RoundScore
    best_adapted: RoundScore


def last_and_best(history: History) -> LastAndBest:
    """The last scored round, and those with the best mean served and the best mean adapted score (the earliest of equals).

    The last round is an honest estimate. The best ones are chosen *on the test data*, so their scores are optimistic: a maximum
    over many noisy numbers, and more so the more rounds were scored. Report them as what they are, or not at all.
    """
    _require_rounds(history)
    served, adapted = (_means(history.scores(which)) for which in ("served", "adapted"))

    def at(position: int) -> RoundScore:
        return RoundScore(int(history["round"][position]), float(served[position]), float(adapted[position]))

    return LastAndBest(at(-1), best_served=at(_best(served)), best_adapted=at(_best(adapted)))


def _means(scores: NDArray[Any]) -> Array:
    """Mean over the clients that have a score, [S]; NaN for a round where none has."""
    return np.array([summarise(row).mean for row in scores])


def _best(means: Array) -> int:
    return int(np.where(np.isnan(means), -np.inf, means).argmax())


def _require_rounds(history: History) -> None:
    if len(history) == 0:
        raise ValueError("the history is empty: no round has been scored yet")
