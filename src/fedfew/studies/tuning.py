"""The protocol ``tuned``: hyperparameters chosen from a declared grid on validation data, never on test data.

Of every client's training samples a share is held out. Each candidate is trained on the rest and scored on the held-out samples;
the best one is then trained on all training samples and scored on the test samples, as any other run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from fedfew.training.resolve import resolve
from fedfew.training.settings import TYPES, Settings

SHARE = 0.2  # of each client's training samples, held out for validation
RULE = "highest mean served score (accuracy, R², …) over clients on the validation samples; of equals the first"
MOST_CANDIDATES = 100
NOT_TUNED = {"dataset", "partition", "clients", "method", "model", "rounds", "local_epochs", "sample", "seed", "data_seed"}

Grid = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Score:
    """A candidate on the validation samples; None where training diverged."""

    values: dict[str, Any]
    served_accuracy: float | None
    served_loss: float | None = None


def points(grid: Grid) -> list[dict[str, Any]]:
    """All combinations of a grid's values, in its order."""
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def candidate(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """The settings of a run with these values instead."""
    config = settings.as_config()
    own = {name: value for name, value in values.items() if name not in TYPES}
    plain = {name: value for name, value in values.items() if name in TYPES}
    return resolve({}, {}, config | plain | {"method": config["method"] | own})


def best(scores: Sequence[Score]) -> int:
    """The position of the candidate that is chosen."""
    known = [i for i, score in enumerate(scores) if score.served_accuracy is not None]
    if not known:
        raise ValueError(f"training diverged with every candidate of the grid: {[score.values for score in scores]}")
    return max(known, key=lambda i: (scores[i].served_accuracy, -i))


def record(scores: Sequence[Score], chosen: int) -> dict[str, Any]:
    """What is stored with the result."""
    return {
        "validation_share": SHARE,
        "rule": RULE,
        "candidates": [vars(score) for score in scores],
        "chosen": scores[chosen].values,
    }


def in_words(values: Mapping[str, Any]) -> str:
    return "tuned: " + ", ".join(f"{name} {value}" for name, value in values.items())
