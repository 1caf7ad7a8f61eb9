"""Each method against the best of its column, over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from fedfew.studies import wording
from fedfew.studies.measures import MEASURES, Measure
from fedfew.studies.significance import EXACT_SEEDS, LEAST_SEEDS, Paired, holm, least_p, paired
from fedfew.studies.store import Results
from fedfew.studies.tabledata import Cell, TableData
from fedfew.studies.tables_scores import labels
from fedfew.studies.view import Line, View, views

HEADS = ("mean", "less the best", "95 % from", "95 % to", "p, t-test", "Holm", "p, sign flips", "Holm, flips")
Seeds = dict[int, float]


def significance(spec: Mapping[str, Any], results: Results, study: str) -> list[TableData]:
    """A table a protocol, score and data."""
    name = spec.get("measure", "mean")
    tables = []
    for view in views(spec, results, study):
        scores = view.scores(spec.get("score", "both")) if MEASURES[name].scored else ("",)
        tables += [_table(view, spec, name, score, column) for score in scores for column in view.columns]
    return tables


def _table(view: View, spec: Mapping[str, Any], name: str, score: str, column: str) -> TableData:
    measure = MEASURES[name]
    values = {line: _values(view, column, line, measure, score) for line in view.lines if view.planned(column, line)}
    best = _best(values, measure)
    tests = {line: _paired(values[line], values[best]) for line in values if best and line != best}
    t_tests = dict(zip(tests, holm([test.t_test if test else None for test in tests.values()]), strict=True))
    flips = dict(zip(tests, holm([test.sign_flips if test else None for test in tests.values()]), strict=True))
    rows = tuple(
        (label, _row(values[line], line == best, tests.get(line), t_tests.get(line), flips.get(line)))
        for label, line in zip(labels(list(values)), values, strict=True)
    )
    decimals = measure.decimals
    return TableData(
        name=wording.name(spec, view, score, column),
        title=f"{wording.title(spec, view, [name], score)}: {column}, each method against the best",
        caption=_caption(view, column),
        protocol=view.protocol,
        columns=HEADS,
        rows=rows,
        unit=measure.unit,
        notes=_notes([test for test in tests.values() if test], {line.label: len(v) for line, v in values.items()}),
        decimals=(decimals, decimals, decimals, decimals, 4, 4, 4, 4),
    )


def _values(view: View, column: str, line: Line, measure: Measure, score: str) -> Seeds:
    return {run["seed"]: value for run in view.done(column, line) if (value := measure.of(run, score)) is not None}


def _best(values: Mapping[Line, Seeds], measure: Measure) -> Line | None:
    """By the mean, among those with seeds enough for a test."""
    sign = measure.better or 1
    candidates = [line for line, seeds in values.items() if len(seeds) >= LEAST_SEEDS]
    return max(candidates, key=lambda line: sign * fmean(values[line].values()), default=None)


def _paired(ours: Seeds, best: Seeds) -> Paired | None:
    common = sorted(ours.keys() & best.keys())
    return paired([ours[s] for s in common], [best[s] for s in common]) if len(common) >= LEAST_SEEDS else None


def _row(seeds: Seeds, best: bool, test: Paired | None, t_test: float | None, flips: float | None) -> tuple[Cell, ...]:
    mean = Cell(
        fmean(seeds.values()) if seeds else None,
        seeds=len(seeds),
        rank=1 if best else None,
        note="" if seeds else "not run",
    )
    if test is None:
        why = "the best" if best else f"{len(seeds)} seed{'s' if len(seeds) != 1 else ''}"
        return (mean, Cell(None, note=why), *(Cell(None) for _ in HEADS[2:]))
    numbers = (test.difference, test.low, test.high, test.t_test, t_test, test.sign_flips, flips)
    return (mean, *(Cell(n, seeds=test.seeds, note="" if n is not None else "no spread") for n in numbers))


def _caption(view: View, column: str) -> str:
    facts = wording.facts(run for run in view.runs if run["column"] == column)
    return (
        f"{facts}; last round. {wording.PROTOCOLS.get(view.protocol, f'Protocol {view.protocol}.')} Mean over seeds; "
        "difference to the best method, with its 95 % interval by Student's t, over the seeds that both have. p: two-sided, of "
        "the paired t-test and of the sign-flip permutation test. Holm: corrected for all comparisons of this table."
    )


def _notes(tests: Sequence[Paired], seeds: Mapping[str, int]) -> tuple[str, ...]:
    few = [f"{label} ({count})" for label, count in seeds.items() if count < LEAST_SEEDS]
    found = [f"A test needs {LEAST_SEEDS} seeds; fewer: {', '.join(few)}."] if few else []
    if tests:
        n = min(test.seeds for test in tests)
        weak = " So no difference, however large, can be called significant by it." if least_p(n) > 0.05 else ""
        found.append(f"With {n} seeds the sign-flip test cannot give a p below {least_p(n):g}, before any correction.{weak}")
        if max(test.seeds for test in tests) > EXACT_SEEDS:
            found.append(f"Beyond {EXACT_SEEDS} seeds its sign patterns are drawn, not gone through one by one.")
        found.append("The best method was chosen on these same numbers, which makes its lead look larger than it is.")
    return tuple(found)
