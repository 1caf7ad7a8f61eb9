"""Values over rounds: summaries per round, and heat maps of clients by rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfew.evaluation.metrics import Summary, summarise, weight_diagnostics
from fedfew.report import SCORES
from fedfew.report.page import pack
from fedfew.report.page.binning import Rows
from fedfew.report.page.record import Record
from fedfew.tasks import recorded_task
from fedfew.training.history import History

Array = NDArray[Any]
OF_CLIENTS = ("mean", "std", "min", "max", "worst_tenth", "jain")
OF_ROUNDS = ("seconds", "bytes_up", "bytes_down", "left_out", "g")
OF_WEIGHTS = ("entropy", "largest", "alpha_cv", "models_in_use")


FINAL = ("macro_f1", "auc", "subset_accuracy")  # shares of 1 that are computed when a run has ended, where the task has them
FINAL_ERRORS = ("mae", "rmse", "perplexity")  # the same, but numbers of which less is better


def score_column(record: Record, score: str) -> str:
    """The column of the task's score: served_accuracy, or served_score where the task is no classification."""
    return f"{score}_{recorded_task(record.settings).column}"


def scores(record: Record, score: str, at: int) -> Array:
    return record.row(score_column(record, score), at)


def _packed_scores(record: Record, values: Array) -> pack.Packed:
    """R² may be negative, which the compact encoding of scores cannot hold."""
    return pack.floats(values) if recorded_task(record.settings).name == "regression" else pack.fractions(values)


def short(value: float | None, digits: int = 6) -> float | None:
    """A number with so many significant digits; None for what is none."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.{digits}g}")


def summary_values(summary: Summary) -> dict[str, Any]:
    return {name: short(value) for name, value in asdict(summary).items()}


def curves(record: Record, at: Array) -> dict[str, Any]:
    """Numbers a round, at these positions of the history."""
    values: dict[str, Any] = {score: {name: [] for name in OF_CLIENTS} for score in SCORES}
    single = [name for name in OF_ROUNDS if name in record.columns]
    values |= {name: [] for name in (*single, "present")}
    for position in at.tolist():
        for score in SCORES:
            over_clients = summarise(scores(record, score, position))
            for name in OF_CLIENTS:
                values[score][name].append(short(getattr(over_clients, name), 5))
        for name in single:
            values[name].append(short(float(record.row(name, position))))
        values["present"].append(int((~np.isnan(record.row("losses", position)).any(-1)).sum()))
        for name, value in _weights(record, position).items():
            values.setdefault(name, []).append(short(value, 5))
    return values


def _weights(record: Record, position: int) -> dict[str, float]:
    columns: dict[str, list[Array]] = {
        name: [record.row(name, position)] for name in ("round", "choice", "w", "alpha") if name in record.columns
    }
    series = weight_diagnostics(History(columns))
    found = {name: getattr(series, name) for name in OF_WEIGHTS}
    return {name: float(value[0]) for name, value in found.items() if value is not None}


def maps(record: Record, at: Array, rows: Rows, models: int) -> dict[str, pack.Packed]:
    """Heat maps, ``[rounds, rows]`` and for w ``[rounds, rows, models]``."""

    def over_rounds(name: str) -> Array:
        return np.stack([rows.mean(record.row(name, position)) for position in at.tolist()])

    made = {score: _packed_scores(record, over_rounds(score_column(record, score))) for score in SCORES}
    if models > 1:
        chosen = [rows.most_frequent(record.row("choice", position), models) for position in at.tolist()]
        made["choice"] = pack.whole(np.stack(chosen))
    if "alpha" in record.columns:
        made["alpha"] = pack.floats(over_rounds("alpha"))
    if "w" in record.columns:
        made["w"] = pack.shares(over_rounds("w"))
    return made


def switches(record: Record, at: Array) -> tuple[Array, Array]:
    """How often each client has changed its model, [M], and how many did since the round drawn before, at these positions.

    Every scored round counts, drawn or not; a client that was not scored in a round has kept its model.
    """
    before = np.array(record.row("choice", 0))
    of_clients = np.zeros(len(before), dtype=np.int64)
    of_rounds = np.zeros(record.scored, dtype=np.int64)
    for position in range(1, record.scored):
        now = record.row("choice", position)
        changed = (now != before) & (now >= 0) & (before >= 0)
        of_clients += changed
        of_rounds[position] = changed.sum()
        before = np.where(now >= 0, now, before)
    return of_clients, np.diff(np.concatenate([[0], of_rounds.cumsum()[at]]))


def clients(record: Record, about: Mapping[str, Any], final: Mapping[str, Any], groups: Array) -> dict[str, Any]:
    """What is known of every client after the scored round whose models are used, binned or not."""
    last = record.in_use
    columns: dict[str, Any] = {score: _packed_scores(record, scores(record, score, last)) for score in SCORES}
    columns["choice"] = pack.whole(record.row("choice", last))
    columns["group"] = pack.whole(groups)
    for name in ("train", "test"):
        if name in about:
            columns[name] = pack.whole(about[name])
    for name in FINAL:
        if name in final:
            columns[name] = pack.fractions(np.array(final[name], dtype=float))
    for name in FINAL_ERRORS:
        if name in final:
            columns[name] = pack.floats(np.array(final[name], dtype=float))
    if "alpha" in record.columns:
        columns["alpha"] = pack.floats(record.row("alpha", last))
    if "w" in record.columns:
        columns["w"] = pack.fractions(record.row("w", last))
    return columns
