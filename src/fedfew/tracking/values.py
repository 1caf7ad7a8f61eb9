"""What is logged of a run, as flat names and numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedfew.training.history import History
from fedfew.training.own_metrics import PREFIX
from fedfew.training.own_metrics import names as own_metrics

if TYPE_CHECKING:
    from fedfew.training.on_round import Progress
    from fedfew.training.run import Run

SUMMARY = ("mean", "std", "min", "worst_tenth", "jain")
OF_ROUNDS = ("seconds", "bytes_up", "bytes_down", "left_out", "g", "epsilon")
COMPUTED = ("macro_f1", "auc", "subset_accuracy", "mae", "rmse", "perplexity")  # when a run has ended, by its task
LONGEST = 500  # characters of a setting: what MLflow takes at least


def flattened(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """``{"method": {"mu": 0.01}}`` as ``{"method.mu": 0.01}``; lists (one number per client) as text, cut where too long."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{before}{name}.")
        elif isinstance(value, str | int | float | bool) or value is None:
            flat[before + name] = value
        else:
            text = str(value)
            flat[before + name] = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return flat


def round_values(progress: Progress) -> dict[str, float]:
    """The loss of every round; where it was scored, all that its entry in the history holds."""
    values = {"loss": progress.loss}
    history = progress.history
    if history is not None and len(history) and int(history.last("round")) == progress.round:
        values |= scored_values(History.from_arrays({name: history.last(name)[None] for name in history.columns}))
    return _finite(values)


def scored_values(history: History) -> dict[str, float]:
    """Of a history of one entry."""
    from fedfew.evaluation.metrics import summarise
    from fedfew.report import SCORES, weights_at

    values = {name: float(history.last(name)) for name in OF_ROUNDS if name in history.columns}
    for score in SCORES:
        summary = summarise(history.last_scores(score))
        values |= {f"{score}/{name}": getattr(summary, name) for name in SUMMARY}
        values[f"{score}/loss"] = summarise(history.last(f"{score}_loss"), higher_is_better=False).mean
    values |= {f"weights/{name}": value for name, value in weights_at(history).items()}
    values |= {f"served/{name}": summarise(history.last(f"{PREFIX}{name}")).mean for name in own_metrics(history)}
    return values


def final_values(run: Run, final: Mapping[str, Any]) -> dict[str, float]:
    """Scores of the round whose models are used under ``final/``, and means over clients of what else was computed in the end."""
    from fedfew.evaluation.metrics import summarise

    values = {}
    if len(run.history):
        in_use = History.from_arrays({name: run.scored(name)[None] for name in run.history.columns})
        values = {name: value for name, value in scored_values(in_use).items() if "/" in name}
    for name in COMPUTED:
        if final.get(name):
            values[f"served/{name}"] = summarise([math.nan if v is None else v for v in final[name]]).mean
    return _finite({f"final/{name}": value for name, value in values.items()})


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    """Without what is not a number: a tool would draw it, or refuse all of it."""
    return {name: float(value) for name, value in values.items() if math.isfinite(value)}
