"""Figures over rounds: the objective g, and learning curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fedfew.studies import captions
from fedfew.studies.figures.score_panels import score_panels
from fedfew.studies.figures.style import (
    Drawing,
    add_footer,
    add_title,
    empty_panel,
    label_ends,
    missing,
    one_per_column,
    ordered_styles,
)
from fedfew.studies.figures.values import Curve, curve
from fedfew.studies.view import AXES, Line, View, point_label
from fedfew.util.printable import for_plot

Spec = Mapping[str, Any]
HEIGHT = 3.4  # inches of a panel
MOST_BANDS = 5  # lines; bands of more would hide each other


def g_over_rounds(spec: Spec, view: View) -> list[Drawing]:
    """g against rounds, one line per grid point."""
    return _g(spec, view, updates=False)


def g_over_updates(spec: Spec, view: View) -> list[Drawing]:
    """g against rounds × local epochs: equal amounts of work have the same x."""
    return _g(spec, view, updates=True)


def curves(spec: Spec, view: View) -> list[Drawing]:
    """Learning curves, one line per method; one picture per data set."""
    return one_per_column(spec, view, _curves)


def _g(spec: Spec, view: View, updates: bool) -> list[Drawing]:
    paint = partial(_paint_g, spec=spec, view=view, updates=updates)
    return [Drawing(captions.name(spec, view), 1.6 + 4.8 * len(view.columns), 1.2 + HEIGHT, paint)]


def _paint_g(figure: Any, spec: Spec, view: View, updates: bool) -> None:
    axes = figure.subplots(1, len(view.columns), squeeze=False)[0]
    lines = _ordered(view.lines, spec.get("by"))
    for axis, column in zip(axes, view.columns, strict=True):
        drawn = {line: found for line in lines if (found := curve(view, column, line, "g"))}
        several = len({line.row for line in drawn}) > 1
        ends = []
        for (line, found), style in zip(drawn.items(), ordered_styles(len(drawn)), strict=True):
            factor = _epochs(view, column, line) if updates else 1
            name = (
                line.label if several or not line.point else point_label((axis, v) for axis, v in line.point if axis != "rounds")
            )
            ends.append(_line(axis, found, factor, style, name, len(drawn) <= MOST_BANDS))
        if len(view.columns) > 1:
            axis.set_title(for_plot(column))
        if not drawn:
            empty_panel(axis, "no run has g")
        elif all((found.low > 0).all() for found in drawn.values()):
            axis.set_yscale("log")
        axis.set_xlabel("local updates (rounds × local epochs)" if updates else "communication rounds")
        axis.set_ylabel("g (STCH-Set), training")
        if len({x for x, _, _, _ in ends}) > 1:  # lines of different lengths end anywhere
            axis.legend(loc="upper right")
        else:
            label_ends(axis, ends, HEIGHT - 0.5)
    by = [AXES.get(name, name) for name in dict.fromkeys(name for line in lines for name, _ in line.point) if name != "rounds"]
    what = f"The objective g over {'updates' if updates else 'rounds'}{f', by {by[0]}' if by else ''}"
    with_g = [run for run in view.runs if run["g"] is not None]
    add_title(figure, spec, view, what, with_g or view.runs)
    add_footer(figure, [], missing(view, view.columns))


def _ordered(lines: Sequence[Line], by: str | None) -> list[Line]:
    """By the value on the axis; those without one in their order behind."""
    if by is None:
        axes = [axis for line in lines for axis, _ in line.point if axis != "rounds"]
        by = axes[0] if axes else ""
    return sorted(lines, key=lambda line: (line.at(by) is None, line.at(by) or 0))


def _epochs(view: View, column: str, line: Line) -> int:
    epochs: int = view.planned(column, line)[0]["local_epochs"]
    return epochs


def _line(
    axis: Any, found: Curve, factor: float, style: Mapping[str, Any], name: str, band: bool
) -> tuple[float, float, str, Any]:
    """The mean of the seeds, with a band from the lowest to the highest; gives back where it ends."""
    x = factor * found.rounds
    if band and (found.high > found.low).any():
        axis.fill_between(x, found.low, found.high, color=style["color"], alpha=0.15, lw=0)
    axis.plot(x, found.mean, label=for_plot(name), markevery=max(1, len(x) // 8), **style)
    return float(x[-1]), float(found.mean[-1]), name, style["color"]


def _curves(figure: Any, spec: Spec, view: View, column: str, scores: Sequence[str]) -> None:
    field = "{score}_" + spec.get("measure", "mean").replace("weighted_mean", "weighted")

    def draw(axis: Any, score: str, line: Line, style: dict[str, Any]) -> None:
        if found := curve(view, column, line, field, score, factor=100):
            _line(axis, found, 1, style, line.label, len(view.lines) <= MOST_BANDS)

    score_panels(figure, view, column, scores, "round", draw)
    what = {"mean": "mean over clients", "min": "worst client", "weighted_mean": "mean weighted by samples"}
    add_title(figure, spec, view, f"Learning curves: {what[spec.get('measure', 'mean')]}", view.runs_of(column))
    add_footer(figure, [], missing(view, [column]))
