"""Each method against the best of its column, over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from fedfew.studies import captions
from fedfew.studies.measures import MEASURES, Measure
from fedfew.studies.significance import EXACT_SEEDS, LEAST_SEEDS, Paired, holm, least_p, paired
from fedfew.studies.store import Results
from fedfew.studies.tables.scores import labels
from fedfew.studies.tables.table import Cell, TableData
from fedfew.studies.view import Line, View, views
from fedfew.util.spelling import counted

HEADS = ("mean", "less the best", "95 % from", "95 % to", "t-test p", "t-test Holm", "sign-flip p", "sign-flip Holm")
SHORT = ("less the best", "95 %, ±", "t-test Holm", "sign-flip Holm")  # where there are several data
Seeds = dict[int, float]


@dataclass(frozen=True)
class Compared:
    """One data's methods, each against the best."""

    values: dict[Line, Seeds]
    best: Line | None
    tests: dict[Line, Paired | None]
    t_tests: dict[Line, float | None]  # Holm's
    flips: dict[Line, float | None]
    absences: dict[Line, str]  # why a method has no value


def significance(spec: Mapping[str, Any], results: Results, study: str) -> list[TableData]:
    """One table per protocol and score, short where there are several data sets; with ``each``, a full one per data set.

    A protocol of fewer than three seeds has none.
    """
    name = spec.get("measure", "mean")
    tables = []
    for view in views(spec, results, study):
        if view.seeds < LEAST_SEEDS:
            continue
        for score in view.scores(spec.get("score", "both")) if MEASURES[name].scored else ("",):
            if spec.get("each") or len(view.columns) == 1:
                tables += [_full(view, spec, name, score, column) for column in view.columns]
            else:
                tables.append(_short(view, spec, name, score))
    return tables


def compared(view: View, column: str, measure: Measure, score: str) -> Compared:
    values = {line: seeds_of(view, column, line, measure, score) for line in view.lines}
    best = _best(values, measure)
    tests = {line: paired_seeds(values[line], values[best]) for line in values if best and line != best}
    t_tests = dict(zip(tests, holm([test.t_test if test else None for test in tests.values()]), strict=True))
    flips = dict(zip(tests, holm([test.sign_flips if test else None for test in tests.values()]), strict=True))
    absences = {line: view.absence(column, line) for line, seeds in values.items() if not seeds}
    return Compared(values, best, tests, t_tests, flips, absences)


def _full(view: View, spec: Mapping[str, Any], name: str, score: str, column: str) -> TableData:
    measure = MEASURES[name]
    found = compared(view, column, measure, score)
    return TableData(
        name=captions.name(spec, view, score, column),
        title=f"{captions.title(spec, view, [name], score)}: {column}, each method against the best",
        caption=_caption(view, [column]),
        protocol=view.protocol,
        columns=HEADS,
        rows=tuple((label, _full_row(found, line)) for label, line in zip(labels(view.lines), view.lines, strict=True)),
        unit=measure.unit,
        notes=_notes({column: found}),
        decimals=(*(measure.decimals,) * 4, 4, 4, 4, 4),
    )


def _short(view: View, spec: Mapping[str, Any], name: str, score: str) -> TableData:
    measure = MEASURES[name]
    found = {column: compared(view, column, measure, score) for column in view.columns}
    return TableData(
        name=captions.name(spec, view, score),
        title=f"{captions.title(spec, view, [name], score)}: each method against the best of its column",
        caption=_caption(view, view.columns),
        protocol=view.protocol,
        columns=tuple(f"{column} {head}" for column in view.columns for head in SHORT),
        rows=tuple(
            (label, tuple(cell for column in view.columns for cell in _short_row(found[column], line)))
            for label, line in zip(labels(view.lines), view.lines, strict=True)
        ),
        unit=measure.unit,
        notes=_notes(found),
        groups=tuple(column for column in view.columns for _ in SHORT),
        decimals=(measure.decimals, measure.decimals, 4, 4) * len(view.columns),
    )


def seeds_of(view: View, column: str, line: Line, measure: Measure, score: str) -> Seeds:
    """The values of the runs that are done, by seed."""
    return {run["seed"]: value for run in view.done(column, line) if (value := measure.of(run, score)) is not None}


def _best(values: Mapping[Line, Seeds], measure: Measure) -> Line | None:
    """By the mean, among those with seeds enough for a test."""
    candidates = [line for line, seeds in values.items() if len(seeds) >= LEAST_SEEDS]
    return max(candidates, key=lambda line: measure.better * fmean(values[line].values()), default=None)


def paired_seeds(ours: Seeds, best: Seeds) -> Paired | None:
    """Over the seeds that both have; None where these are too few."""
    common = sorted(ours.keys() & best.keys())
    return paired([ours[s] for s in common], [best[s] for s in common]) if len(common) >= LEAST_SEEDS else None


def _why(found: Compared, line: Line) -> str:
    """Why a method is not tested."""
    count = len(found.values[line])
    return "the best" if line == found.best else counted(count, "seed") if count else found.absences[line]


def _full_row(found: Compared, line: Line) -> tuple[Cell, ...]:
    seeds, test = found.values[line], found.tests.get(line)
    value = fmean(seeds.values()) if seeds else None
    mean = Cell(value, seeds=len(seeds), rank=1 if line == found.best else None, note=found.absences.get(line, ""))
    if test is None:
        return (mean, Cell(None, note=_why(found, line)), *(Cell(None) for _ in HEADS[2:]))
    numbers = (test.difference, test.low, test.high, test.t_test, found.t_tests[line], test.sign_flips, found.flips[line])
    return (mean, *(_number(value, test) for value in numbers))


def _short_row(found: Compared, line: Line) -> tuple[Cell, ...]:
    test = found.tests.get(line)
    if test is None:
        return (Cell(None, note=_why(found, line)), *(Cell(None) for _ in SHORT[1:]))
    half = None if test.high is None else test.high - test.difference
    return tuple(_number(value, test) for value in (test.difference, half, found.t_tests[line], found.flips[line]))


def _number(value: float | None, test: Paired) -> Cell:
    return Cell(value, seeds=test.seeds, note="" if value is not None else "no spread")


def _caption(view: View, columns: Sequence[str]) -> str:
    runs = [run for run in view.runs if run["column"] in columns]
    protocol = captions.PROTOCOLS.get(view.protocol, f"Protocol {view.protocol}.")
    scores = f"{captions.facts(runs)}; {captions.which_round(runs)}. {protocol} Mean over seeds"
    return (
        f"{scores}; difference to the best method, with its 95 % interval by Student's t, over the seeds that both have. p: "
        "two-sided, of the paired t-test and of the sign-flip permutation test. Holm: corrected for all comparisons on the same "
        "data."
    )


def _notes(found: Mapping[str, Compared]) -> tuple[str, ...]:
    tests = [test for one in found.values() for test in one.tests.values() if test]
    few = {
        f"{line.label}{f' on {column}' if len(found) > 1 else ''} ({len(seeds)})": None
        for column, one in found.items()
        for line, seeds in one.values.items()
        if len(seeds) < LEAST_SEEDS
    }
    notes = [f"A test needs {LEAST_SEEDS} seeds; fewer: {', '.join(few)}."] if few else []
    if tests:
        n = min(test.seeds for test in tests)
        weak = " So no difference, however large, can be called significant by it." if least_p(n) > 0.05 else ""
        notes.append(
            f"With {counted(n, 'seed')} the sign-flip test cannot give a p below {least_p(n):g}, before any correction.{weak}"
        )
        if max(test.seeds for test in tests) > EXACT_SEEDS:
            notes.append(f"Beyond {EXACT_SEEDS} seeds its sign patterns are drawn, not gone through one by one.")
        notes.append("The best method was chosen on these same numbers, which makes its lead look larger than it is.")
    return tuple(notes)
