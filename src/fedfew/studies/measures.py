"""What a table or figure can show of a run, and how it is printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SCORES = ("served", "adapted")
AS_PUBLISHED = "as published"  # the score that the published code reads: FedFew's adapted, all others' served


@dataclass(frozen=True)
class Measure:
    """One number of a run, from the columns of the table ``runs``."""

    head: str  # over a table's column
    column: str  # of the table runs; "{score}" is replaced by served or adapted
    decimals: int = 2
    factor: float = 100  # from what is stored to what is printed
    unit: str = "%"
    better: int = 1  # 1 where higher is better, −1 where lower is, 0 where neither is
    spread: str = ""  # column of the spread over clients, where there is one

    @property
    def scored(self) -> bool:
        """Whether there is one for each of the two scores."""
        return "{score}" in self.column

    def of(self, run: Mapping[str, Any], score: str) -> float | None:
        return self._read(run, self.column, score)

    def spread_of(self, run: Mapping[str, Any], score: str) -> float | None:
        return self._read(run, self.spread, score) if self.spread else None

    def _read(self, run: Mapping[str, Any], column: str, score: str) -> float | None:
        value = run[column.format(score=score_of(run, score))]
        return None if value is None else self.factor * value


def _index(head: str, column: str, decimals: int = 3, better: int = 0) -> Measure:
    return Measure(head, column, decimals, factor=1, unit="", better=better)


MEASURES = {
    "mean": Measure("mean", "{score}_mean", spread="{score}_std"),
    "weighted_mean": Measure("weighted mean", "{score}_weighted_mean"),
    "min": Measure("worst client", "{score}_min"),
    "max": Measure("best client", "{score}_max"),
    "worst_tenth": Measure("worst 10 %", "{score}_worst_tenth"),
    "std": Measure("std over clients", "{score}_std", better=-1),
    "jain": _index("Jain's index", "{score}_jain", better=1),
    "single_mean": Measure("best single model", "single_mean"),
    "single_min": Measure("best single model, worst client", "single_min"),
    "macro_f1": Measure("macro-F1, served", "macro_f1"),
    "auc": Measure("AUC, served", "auc"),
    "entropy": _index("entropy of w", "entropy"),
    "largest": _index("largest w", "largest"),
    "alpha_cv": _index("CV of α", "alpha_cv"),
    "g": _index("g", "g", decimals=4),
    "models_in_use": _index("models in use", "models_in_use", decimals=1),
    "seconds": Measure("seconds", "seconds", decimals=1, factor=1, unit="s", better=-1),
    "seconds_per_round": Measure("seconds per round", "seconds_per_round", decimals=3, factor=1, unit="s", better=-1),
    "bytes_up": Measure("MB up per round", "bytes_up", factor=1e-6, unit="MB", better=-1),
    "bytes_down": Measure("MB down per round", "bytes_down", factor=1e-6, unit="MB", better=-1),
}


def published_score(method: str) -> str:
    """Which score the published code reads of a method."""
    return "adapted" if method == "fedfew" else "served"


def score_of(run: Mapping[str, Any], score: str) -> str:
    """Served or adapted: what ``score`` means for this run."""
    return published_score(run["method"]) if score == AS_PUBLISHED else score
