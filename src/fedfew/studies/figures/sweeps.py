"""Figures along an axis of a grid: the score by K, by μ, by local epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from fedfew.studies import captions, paper
from fedfew.studies.figures.style import (
    COLOURS,
    MEANING,
    PAPER,
    Drawing,
    add_footer,
    add_title,
    empty_panel,
    label_ends,
    line_styles,
    missing,
    percent_limits,
)
from fedfew.studies.figures.values import Sweep, mean, means, stds, sweeps, values
from fedfew.studies.measures import AS_PUBLISHED, MEASURES, published_score
from fedfew.studies.view import AXES, View
from fedfew.util.printable import for_plot

Spec = Mapping[str, Any]
PANEL = 2.9  # inches of height
NAMES = {"models": "number of server models, K", "mu": "smoothing parameter, μ", "local_epochs": "local epochs × rounds"}


def accuracy_by_k(spec: Spec, view: View) -> list[Drawing]:
    """The score against K: mean, from worst to best client, and methods without K as dashed lines."""
    return _accuracy(spec, view, spec.get("by", "models"))


def accuracy_by_mu(spec: Spec, view: View) -> list[Drawing]:
    return _accuracy(spec, view, spec.get("by", "mu"))


def accuracy_by_epochs(spec: Spec, view: View) -> list[Drawing]:
    return _accuracy(spec, view, "local_epochs")


def _accuracy(spec: Spec, view: View, by: str) -> list[Drawing]:
    """One panel per data set and score."""
    scores = view.scores(spec.get("score", "both"))
    panels = [(column, score) for column in view.columns for score in scores]
    width = min(len(panels), 2)
    height = -(-len(panels) // width)
    paint = partial(_paint, spec=spec, view=view, by=by, panels=panels, shape=(height, width))
    return [Drawing(captions.name(spec, view), 1.2 + 4.3 * width, 1.2 + PANEL * height, paint)]


def _paint(figure: Any, spec: Spec, view: View, by: str, panels: Sequence[tuple[str, str]], shape: tuple[int, int]) -> None:
    axes = figure.subplots(*shape, squeeze=False, sharey="row").ravel()
    measure = spec.get("measure", "mean")
    drawn = list(zip(axes, panels, strict=False))
    for axis, (column, score) in drawn:
        panel(axis, view, column, score, by, measure)
        where = f"{column}, " if len(view.columns) > 1 else ""
        axis.set_title(for_plot(f"{where}{MEANING[score]}"))
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    percent_limits(axis for axis, _ in drawn)
    for axis, (column, score) in drawn:
        label_ends(axis, _levels(axis, view, column, score, by, measure), PANEL - 0.6)
    called = captions.score_name(view.runs)
    what = f"{called[0].upper()}{called[1:]} by {AXES.get(by, by)}: {MEASURES[measure].head}"
    add_title(figure, spec, view, what, view.runs)
    add_footer(figure, axes, missing(view, view.columns))


def panel(axis: Any, view: View, column: str, score: str, by: str, measure: str) -> None:
    """Mean over clients with its spread over seeds; a band from the worst to the best client where there is one line only."""
    along, _ = sweeps(view, by)
    place = placed(along, by)
    for sweep, style in zip(along, line_styles([sweep.row for sweep in along]), strict=True):
        x = [place[value] for value in sweep.at]
        y, over_seeds = (f(view, column, sweep.lines, measure, score) for f in (means, stds))
        if len(along) == 1:
            worst, best = (means(view, column, sweep.lines, name, score) for name in ("min", "max"))
            axis.fill_between(x, worst, best, color="#dddddd", lw=0, label="worst to best client")
            axis.plot(x, worst, color="#777777", ls=":", marker="v", ms=4, lw=1, label="worst client")
        spread = over_seeds if over_seeds.any() else None
        label = f"{sweep.label}{'' if spread is None else ', ± over seeds'}"
        axis.errorbar(x, y, yerr=spread, capsize=2.5, elinewidth=1, label=for_plot(label), **style)
        _papers(axis, column, score, by, measure, sweep, place)
    for _, level, _, colour in _levels(axis, view, column, score, by, measure):
        axis.axhline(level, color=colour, ls="--", lw=1.4)
    if not any(len(values(view, column, line, measure, score)) for line in view.lines):
        empty_panel(axis, "no run is done yet")
    _finish(axis, place, by, along)
    axis.set_ylabel(f"test {captions.score_name(view.runs_of(column))}, %")


def _levels(axis: Any, view: View, column: str, score: str, by: str, measure: str) -> list[tuple[float, float, str, str]]:
    """Methods that do not depend on the axis: where at the right edge, how high, name, colour."""
    found = []
    for position, line in enumerate(sweeps(view, by)[1]):
        level = mean(values(view, column, line, measure, score))
        printed = paper.number(measure, column, line.row)
        alike = score in (AS_PUBLISHED, published_score(line.row.lower()))
        name = f"{line.row}\n(paper: {printed.value:g})" if printed and alike else line.row
        if not np.isnan(level):
            found.append((axis.get_xlim()[1], level, name, COLOURS[1 + position % (len(COLOURS) - 1)]))
    return found


def placed(along: Sequence[Sweep], by: str) -> dict[Any, float]:
    """The position of a value on the x-axis: itself, but for local epochs, which are doubled from one to the next."""
    every = sorted({value for sweep in along for value in sweep.at})
    return {value: float(i) if by == "local_epochs" else float(value) for i, value in enumerate(every)}


def _finish(axis: Any, place: Mapping[Any, float], by: str, along: Sequence[Sweep]) -> None:
    log_axis(axis, place, by)
    if by == "local_epochs":
        rounds = {value: line.at("rounds") for sweep in along for value, line in zip(sweep.at, sweep.lines, strict=True)}
        labels = [f"{value} × {rounds[value]}" if rounds[value] else str(value) for value in place]
        axis.set_xticks(list(place.values()), labels)
    axis.set_xlabel(NAMES.get(by, by))
    axis.tick_params(labelleft=True)


def log_axis(axis: Any, place: Mapping[Any, float], by: str) -> None:
    """μ on a logarithmic axis, other numbers as they are; a tick for every value."""
    if by == "mu" and all(value > 0 for value in place.values()):
        axis.set_xscale("log")
    axis.minorticks_off()
    axis.set_xticks(list(place.values()), [f"{value:g}" if isinstance(value, float) else str(value) for value in place])


def draw_paper(axis: Any, column: str, by: str, measure: str, sweep: Sweep, place: Mapping[Any, float]) -> None:
    """The paper's numbers as stars."""
    found = {place[at]: paper.number(measure, column, sweep.row, {by: at}) for at in sweep.at}
    if stars := {x: number.value for x, number in found.items() if number}:
        axis.plot(list(stars), list(stars.values()), label="the paper", **PAPER)


def _papers(axis: Any, column: str, score: str, by: str, measure: str, sweep: Sweep, place: Mapping[Any, float]) -> None:
    """The paper's numbers as stars, where it scored this method this way; what it gives as a range between thin lines."""
    if score not in (AS_PUBLISHED, published_score(sweep.row.lower())):
        return
    draw_paper(axis, column, by, measure, sweep, place)
    for known in paper.ranges():
        if (known.column, known.row, known.axis, known.measure) == (column, sweep.row, by, measure):
            inside = [place[at] for at in sweep.at if float(at) in known.at]
            if inside:
                ends, name = [min(inside), max(inside)], f"the paper: {known.low}–{known.high}"
                axis.fill_between(ends, known.low, known.high, fc="none", ec="#000000", lw=0.8, ls=(0, (2, 2)), label=name)
