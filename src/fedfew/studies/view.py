"""The runs that one table or figure shows: chosen, put in order, found again by column, row and grid point."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from fedfew.studies.measures import AS_PUBLISHED, SCORES
from fedfew.studies.protocol import PUBLISHED
from fedfew.studies.store import Results

T = TypeVar("T")
Run = dict[str, Any]
Spec = Mapping[str, Any]
AXES = {"models": "K", "mu": "μ", "local_epochs": "local epochs"}  # the paper's names


@dataclass(frozen=True)
class Line:
    """A method at a grid point: a row of a table, a line or a position in a figure."""

    row: str
    point: tuple[tuple[str, Any], ...] = ()

    @property
    def label(self) -> str:
        return f"{self.row}, {point_label(self.point)}" if self.point else self.row

    def at(self, axis: str) -> Any:
        return dict(self.point).get(axis)


def point_label(point: Iterable[tuple[str, Any]]) -> str:
    """A grid point in words: K = 3, μ = 0.01."""
    return ", ".join(f"{AXES.get(axis, axis)} = {value}" for axis, value in point)


@dataclass(frozen=True)
class View:
    """One protocol's runs of a study, as far as a table or figure asks for them."""

    study: str
    protocol: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    seeds: int  # of the protocol
    results: Results
    _runs: Mapping[tuple[str, Line], tuple[Run, ...]]

    @property
    def runs(self) -> list[Run]:
        return [run for runs in self._runs.values() for run in runs]

    def runs_of(self, column: str) -> list[Run]:
        return [run for run in self.runs if run["column"] == column]

    def planned(self, column: str, line: Line) -> tuple[Run, ...]:
        """The runs of a column and line, done or not, one per seed."""
        return self._runs.get((column, line), ())

    def done(self, column: str, line: Line) -> list[Run]:
        return [run for run in self.planned(column, line) if run["status"] == "done"]

    def absence(self, column: str, line: Line) -> str:
        """Why a column and line have no number, in the words of a cell."""
        status = {run["status"] for run in self.planned(column, line)}
        return "has none" if "done" in status else "failed" if "failed" in status else "not run"

    def scores(self, wanted: str = "both") -> tuple[str, ...]:
        """What is shown of scored measures: as published alone under that protocol, else one or both scores."""
        if self.protocol == PUBLISHED and wanted == "both":
            return (AS_PUBLISHED,)
        return SCORES if wanted == "both" else (wanted,)

    def of_key(self, table: pa.Table, key: str, order: str, column: str) -> dict[int, float]:
        """A column of ``clients`` or ``rounds``, those of one run, by client or by round; without what is null."""
        rows = table.filter(pc.equal(table["key"], key)).select([order, column])
        pairs = zip(rows[order].to_pylist(), rows[column].to_pylist(), strict=True)
        return dict(sorted((place, value) for place, value in pairs if value is not None))


def views(spec: Spec, results: Results, study: str) -> list[View]:
    """One view per protocol, in the order in which they were planned."""
    runs = [run | {"point": json.loads(run["point"] or "{}")} for run in results.runs.to_pylist() if run["study"] == study]
    wanted = spec.get("protocols") or _in_order(run["protocol"] for run in runs)
    return [_view(spec, results, study, name, [run for run in runs if run["protocol"] == name]) for name in wanted]


def _view(spec: Spec, results: Results, study: str, protocol: str, runs: Sequence[Run]) -> View:
    """Columns and rows that the spec names stay even where there is no run, so that a table can say so."""
    columns = spec.get("columns") or _in_order(run["column"] for run in runs)
    rows = spec.get("rows") or _in_order(run["row"] for run in runs)
    chosen = [run for run in runs if run["column"] in columns and run["row"] in rows and _matches(run, spec.get("where", {}))]
    found: dict[tuple[str, Line], dict[str, Run]] = {}
    lines: list[Line] = []
    for row in rows:
        of_row = [run for run in chosen if run["row"] == row]
        idle = _idle_axes(of_row)
        for run in of_row:
            line = Line(row, tuple((axis, _frozen(value)) for axis, value in run["point"].items() if axis not in idle))
            lines.append(line)
            found.setdefault((run["column"], line), {})[run["key"]] = run
        lines += [] if of_row else [Line(row)]
    by_seed = {where: tuple(sorted(runs.values(), key=lambda run: run["seed"])) for where, runs in found.items()}
    seeds = len({run["seed"] for run in runs})
    return View(study, protocol, tuple(columns), tuple(_in_order(lines)), seeds, results, by_seed)


def _idle_axes(runs: Sequence[Run]) -> set[str]:
    """Axes of the grid that a row does not depend on: FedAvg has no K, so its runs are the same at every K."""
    axes = _in_order(axis for run in runs for axis in run["point"])
    absent = {axis for axis in ("models", "mu") if all(run[axis] is None for run in runs)}
    return {axis for axis in axes if axis in absent or _is_idle(axis, runs)}


def _is_idle(axis: str, runs: Sequence[Run]) -> bool:
    """Whether runs that differ in nothing but this axis, and there are such, are one and the same run."""
    keys: dict[Any, set[str]] = {}
    values: dict[Any, set[str]] = {}
    for run in runs:
        others = json.dumps({name: value for name, value in run["point"].items() if name != axis}, sort_keys=True)
        keys.setdefault((run["column"], run["seed"], others), set()).add(run["key"])
        values.setdefault((run["column"], run["seed"], others), set()).add(json.dumps(run["point"].get(axis)))
    return any(len(different) > 1 for different in values.values()) and all(len(same) == 1 for same in keys.values())


def _matches(run: Run, where: Mapping[str, Any]) -> bool:
    """A run that does not depend on an axis stays: FedAvg beside FedFew at μ = 0.01."""
    for axis, asked in where.items():
        value = run["point"].get(axis, run.get(axis))
        if value is not None and value not in (asked if isinstance(asked, list) else [asked]):
            return False
    return True


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _in_order(values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))
