"""Tables of scores: methods by data, and one method along a grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

from fedfew.studies import captions, paper
from fedfew.studies.measures import AS_PUBLISHED, MEASURES, Measure, published_score
from fedfew.studies.store import Results
from fedfew.studies.tables.table import Cell, TableData
from fedfew.studies.view import Line, Run, View, point_label, views
from fedfew.util.spelling import counted

ALONG_A_GRID = ("mean", "min", "max", "std", "jain", "entropy", "largest", "alpha_cv", "g")


def methods(spec: Mapping[str, Any], results: Results, study: str) -> list[TableData]:
    """Rows are methods, columns are data (Table 1)."""
    return _tables(spec, results, study, ("mean",))


def medical(spec: Mapping[str, Any], results: Results, study: str) -> list[TableData]:
    """Mean, worst and best client for each data (Table 2)."""
    return _tables(spec, results, study, ("mean", "min", "max"))


def jain(spec: Mapping[str, Any], results: Results, study: str) -> list[TableData]:
    """Jain's fairness index, methods by data."""
    return _tables(spec, results, study, ("jain",))


def by_point(spec: Mapping[str, Any], results: Results, study: str) -> list[TableData]:
    """Rows are points of a grid, such as K or μ; columns are measures."""
    return _tables(spec, results, study, ALONG_A_GRID)


def _tables(spec: Mapping[str, Any], results: Results, study: str, default: Sequence[str]) -> list[TableData]:
    """Per protocol one table per score, then one of the measures that do not depend on the score (weights, costs)."""
    names = spec.get("measures", default)
    scored = [name for name in names if MEASURES[name].scored]
    others = [name for name in names if not MEASURES[name].scored]
    tables = []
    for view in views(spec, results, study):
        tables += [_table(view, spec, scored, score) for score in (view.scores(spec.get("score", "both")) if scored else ())]
        tables += [_table(view, spec, others, "")] if others else []
    return tables


def _table(view: View, spec: Mapping[str, Any], names: Sequence[str], score: str) -> TableData:
    where = [(column, name) for column in view.columns for name in names]
    cells = {line: [_cell(view, column, line, name, score) for column, name in where] for line in view.lines}
    for position, (_, name) in enumerate(where):
        ranks = _ranks([row[position].value for row in cells.values()], MEASURES[name])
        for row, rank in zip(cells.values(), ranks, strict=True):
            row[position] = replace(row[position], rank=rank)
    columns, groups = _heads(view.columns, names)
    rows = tuple((label, tuple(cells[line])) for label, line in zip(labels(view.lines), view.lines, strict=True))
    units = tuple(dict.fromkeys(MEASURES[name].unit for name in names))
    table = TableData(
        name=captions.name(spec, view, score or "unscored"),
        title=captions.title(spec, view, names, score),
        caption="",
        protocol=view.protocol,
        columns=columns,
        rows=rows,
        unit=units[0] if len(units) == 1 else "",
        groups=groups,
        decimals=tuple(MEASURES[name].decimals for _, name in where),
    )
    return replace(table, caption=captions.caption(view, table, score), notes=captions.notes(view, table, names))


def labels(lines: Sequence[Line]) -> list[str]:
    """Names of rows; where all are points of one method, the points suffice."""
    if len({line.row for line in lines}) == 1 and all(line.point for line in lines):
        return [point_label(line.point) for line in lines]
    return [line.label for line in lines]


def _heads(columns: Sequence[str], names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of columns, and the headings above them; where units differ, the headings name them."""
    mixed = len({MEASURES[name].unit for name in names}) > 1
    heads = [", ".join(filter(None, [MEASURES[name].head, MEASURES[name].unit if mixed else ""])) for name in names]
    if len(names) == 1:
        return tuple(columns), ()
    if len(columns) == 1:
        return tuple(heads), ()
    return tuple(f"{column} {head}" for column in columns for head in heads), tuple(c for c in columns for _ in heads)


def _cell(view: View, column: str, line: Line, name: str, score: str) -> Cell:
    measure, planned, done = MEASURES[name], view.planned(column, line), view.done(column, line)
    values = [value for run in done if (value := measure.of(run, score)) is not None]
    spreads = [spread for run in done if (spread := measure.spread_of(run, score)) is not None]
    printed = paper.number(name, column, line.row, dict(line.point))
    printed_spread = paper.number("std", column, line.row, dict(line.point)) if measure.spread else None
    method = planned[0]["method"] if planned else line.row.lower()
    return Cell(
        value=fmean(values) if values else None,
        over_clients=fmean(spreads) if spreads else None,
        over_seeds=stdev(values) if len(values) > 1 else None,
        seeds=len(values),
        paper=printed.value if printed else None,
        paper_over_clients=printed_spread.value if printed and printed_spread else None,
        note=_note(planned, done, len(values), view.seeds),
        paper_alike=not measure.scored or score in (AS_PUBLISHED, published_score(method)),
    )


def _note(planned: Sequence[Run], done: Sequence[Run], values: int, seeds: int) -> str:
    """Why there is no value, or one of fewer seeds than planned."""
    errors = [captions.short_error(run["error"]) for run in planned if run["status"] == "failed"]
    if not done:
        reasons = [captions.short_error(run["error"]) for run in planned if run["error"]]
        return f"failed: {errors[0]}" if errors else f"not run: {reasons[0]}" if reasons else "not run"
    if not values:
        return "has none"
    if values < max(len(planned), seeds):
        few = f"{values} of {counted(max(len(planned), seeds), 'seed')}"
        return f"{few}, {len(errors)} failed: {errors[0]}" if errors else few
    return ""


def _ranks(values: Sequence[float | None], measure: Measure) -> list[int | None]:
    """1 for the best, 2 for the second, as printed: equal ones share a rank, and where two are best there is no second."""
    rounded = [None if value is None else round(measure.better * value, measure.decimals) for value in values]
    known = [value for value in rounded if value is not None]
    if not measure.better or len(set(known)) < 2:  # nothing to compare
        return [None] * len(values)
    places = [None if value is None else 1 + sum(other > value for other in known) for value in rounded]
    return [place if place in (1, 2) else None for place in places]
