"""The cost of each method per round, counted (``fedfew.evaluation.costs``), beside what was measured."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from fedfew.studies import captions
from fedfew.studies.store import Results
from fedfew.studies.tables.scores import labels
from fedfew.studies.tables.table import Cell, TableData
from fedfew.studies.view import Line, View, views

COUNTED = {  # of fedfew.evaluation.costs.Cost: head, factor, decimals
    "bytes_up": ("MB up", 1e-6, 2),
    "bytes_down": ("MB down", 1e-6, 2),
    "steps": ("steps", 1.0, 1),
    "gradient_passes": ("gradient passes", 1.0, 0),
    "forward_passes": ("forward passes", 1.0, 0),
    "server_models": ("models on server", 1.0, 1),
    "client_models": ("models on client", 1.0, 1),
    "inference_passes": ("models run to predict", 1.0, 0),
}


def costs(spec: Mapping[str, Any], results: Results, study: str) -> list[TableData]:
    """One table per protocol and data set; rows are methods."""
    return [_table(view, spec, column) for view in views(spec, results, study) for column in view.columns]


def _table(view: View, spec: Mapping[str, Any], column: str) -> TableData:
    lines = [line for line in view.lines if view.planned(column, line)]
    rows = [_row(view, column, line) for line in lines]
    title = f"{spec.get('title') or f'{view.study}: costs of a round'} on {column} (protocol {view.protocol})"
    return TableData(
        name=captions.name(spec, view, column),
        title=title,
        caption="MB, optimiser steps and passes over the training data: of the mean client in one round. Models: how many the "
        "server stores, a client keeps from round to round, a client runs to predict one sample. Counted, not measured. "
        "Mean over seeds; (±): standard deviation over seeds (sample), where they differ.",
        protocol=view.protocol,
        columns=tuple(head for head, _, _ in COUNTED.values()),
        rows=tuple(zip(labels(lines), rows, strict=True)),
        unit="",
        decimals=tuple(
            _decimals([row[at].value for row in rows], decimals) for at, (_, _, decimals) in enumerate(COUNTED.values())
        ),
    )


def _decimals(values: Sequence[float | None], usual: int) -> int:
    """As usual, but with two digits of the smallest value where it would be printed as 0: MB of a small model."""
    least = min((value for value in values if value), default=1.0)
    return usual if least >= 0.5 * 10**-usual else 1 - math.floor(math.log10(least))


def _row(view: View, column: str, line: Line) -> tuple[Cell, ...]:
    counted = [json.loads(run["cost"]) for run in view.done(column, line) if run["cost"]]
    if not counted:
        return tuple(Cell(None, note=view.absence(column, line)) for _ in COUNTED)
    return tuple(_cell([factor * cost[name] for cost in counted]) for name, (_, factor, _) in COUNTED.items())


def _cell(values: Sequence[float]) -> Cell:
    return Cell(fmean(values), over_seeds=stdev(values) if len(set(values)) > 1 else None, seeds=len(values))
