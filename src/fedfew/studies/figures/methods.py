"""Figures that compare methods: their scores on all data, and client by client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from fedfew.studies import captions, paper
from fedfew.studies.figures.score_panels import score_panels
from fedfew.studies.figures.style import PAPER, QUIET, Drawing, add_footer, add_title, missing, one_per_column
from fedfew.studies.figures.values import clients, mean, std, values
from fedfew.studies.measures import AS_PUBLISHED, SCORES, published_score
from fedfew.studies.view import Line, View
from fedfew.util.printable import for_plot

Spec = Mapping[str, Any]
PER_ROW = 3  # panels


def methods(spec: Spec, view: View) -> list[Drawing]:
    """One line per method, one panel per data set: both scores with their spread over seeds, and the paper's number."""
    width = min(len(view.columns), PER_ROW)
    height = -(-len(view.columns) // PER_ROW)
    paint = partial(_methods, spec=spec, view=view, shape=(height, width))
    return [Drawing(captions.name(spec, view), 1.6 + 3.0 * width, 1.4 + (0.7 + 0.24 * len(view.lines)) * height, paint)]


def _methods(figure: Any, spec: Spec, view: View, shape: tuple[int, int]) -> None:
    axes = figure.subplots(*shape, squeeze=False, sharey=True).ravel()
    lines = list(reversed(view.lines))  # the first on top
    for axis, column in zip(axes, view.columns, strict=False):
        _dots(axis, view, column, lines, view.scores(spec.get("score", "both")), spec.get("measure", "mean"))
        axis.set_title(for_plot(column))
        axis.set_xlabel(f"test {captions.score_name(view.runs_of(column))}, %")
        axis.set_yticks(range(len(lines)), [for_plot(line.label) for line in lines])
        axis.set_ylim(-0.6, len(lines) - 0.4)
    for axis in axes[len(view.columns) :]:
        axis.set_visible(False)
    what = {"mean": "mean over clients", "min": "worst client"}[spec.get("measure", "mean")]
    bars = ", bars: std over seeds" if view.seeds > 1 else ""
    add_title(figure, spec, view, f"Test {captions.score_name(view.runs)} by method, {what}{bars}", view.runs)
    add_footer(figure, axes, missing(view, view.columns))


def _dots(axis: Any, view: View, column: str, lines: Sequence[Line], scores: Sequence[str], measure: str) -> None:
    """As in ``fedfew compare``; under the published protocol each method with the one score that was published."""
    from fedfew.report import AcrossSeeds, plots

    nan = float("nan")
    for score in SCORES:
        rows = []
        for line in lines:
            shown = score in scores or (AS_PUBLISHED in scores and score == _published(view, column, line))
            seeds = values(view, column, line, measure, score) / 100 if shown else np.array([])
            rows.append(AcrossSeeds(mean(seeds), std(seeds) if len(seeds) > 1 else nan, nan, mean(seeds)))
        if any(not np.isnan(row.mean) for row in rows):
            plots.dots(axis, rows, "mean", score)
    for place, line in enumerate(lines):
        if number := paper.number(measure, column, line.row, dict(line.point)):
            height = plots.MARKERS[published_score(line.row.lower())][3]
            axis.plot(number.value, place + height, label="the paper", **PAPER | {"marker": "|", "ms": 9, "zorder": 1})
        if not view.done(column, line):
            failed = any(run["status"] == "failed" for run in view.planned(column, line))
            axis.text(
                0.5, place, "failed" if failed else "not run", transform=axis.get_yaxis_transform(), ha="center", va="center",
                color=QUIET, fontsize=8, style="italic",
            )  # fmt: skip


def _published(view: View, column: str, line: Line) -> str:
    planned = view.planned(column, line)
    return published_score(planned[0]["method"] if planned else line.row.lower())


def per_client(spec: Spec, view: View) -> list[Drawing]:
    """Scores of clients from worst to best, one line per method; one picture per data set."""
    return one_per_column(spec, view, _per_client)


def _per_client(figure: Any, spec: Spec, view: View, column: str, scores: Sequence[str]) -> None:
    def draw(axis: Any, score: str, line: Line, style: dict[str, Any]) -> None:
        if seeds := clients(view, column, line, "{score}_score", score):
            share, found = ranked(seeds)
            axis.plot(share, 100 * found, label=for_plot(line.label), markevery=max(1, len(share) // 10), **style)

    score_panels(figure, view, column, scores, "clients from worst to best, %", draw)
    add_title(figure, spec, view, "Client by client, mean over seeds of equal rank", view.runs_of(column))
    add_footer(figure, [], missing(view, [column]))


def ranked(seeds: Sequence[Any]) -> tuple[Any, Any]:
    """Sorted scores, the mean over seeds of each rank; seeds with fewer clients are stretched to the most there are."""
    most = max(len(seed) for seed in seeds)
    share = np.linspace(0, 100, most) if most > 1 else np.array([50.0])
    stretched = [np.interp(share, np.linspace(0, 100, len(seed)), np.sort(seed)) for seed in seeds]
    return share, np.mean(stretched, axis=0)
