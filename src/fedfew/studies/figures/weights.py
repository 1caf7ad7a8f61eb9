"""Figures of the weights α and w, and of fairness, along μ (or another axis of a grid)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from fedfew.studies import captions
from fedfew.studies.figures.style import QUIET, Drawing, add_footer, add_title, empty_panel, missing
from fedfew.studies.figures.style import spread as spread_out
from fedfew.studies.figures.sweeps import NAMES, draw_paper, log_axis, placed
from fedfew.studies.figures.values import Sweep, clients, means, stds, sweeps
from fedfew.studies.measures import AS_PUBLISHED, MEASURES, published_score
from fedfew.studies.view import AXES, View
from fedfew.util.printable import for_plot

Spec = Mapping[str, Any]
SCORE_STYLES = {  # the same in all figures: dashes, marker, colour, fill
    "served": {"ls": "-", "marker": "o", "color": "#0072B2", "mfc": "#0072B2"},
    "adapted": {"ls": "--", "marker": "D", "color": "#D55E00", "mfc": "white"},
    AS_PUBLISHED: {"ls": "-", "marker": "o", "color": "#0072B2", "mfc": "#0072B2"},
    "": {"ls": "-", "marker": "s", "color": "#000000", "mfc": "#000000"},
}
FEW = 200  # clients that are drawn one by one
LABELLED_HEIGHT = 2.2  # inches of a panel, about


def fairness_by_mu(spec: Spec, view: View) -> list[Drawing]:
    """Spread over clients, Jain's index and variation of α against μ; and spread against variation of α."""
    return _each(spec, view, _fairness, 8.4, 6.4)


def weights_by_mu(spec: Spec, view: View) -> list[Drawing]:
    """How α spreads over clients; entropy and maximum of w."""
    return _each(spec, view, _weights, 10.8, 3.8)


def _each(spec: Spec, view: View, paint: Any, width: float, height: float) -> list[Drawing]:
    """One picture per data set and method along the axis."""
    by = spec.get("by", "mu")
    along, _ = sweeps(view, by)
    if not along:
        return [Drawing(captions.name(spec, view), 6.0, 2.4, partial(_none, spec=spec, view=view, by=by))]
    several = {"column": len(view.columns) > 1, "sweep": len(along) > 1}
    drawings = []
    for column in view.columns:
        for sweep in along:
            more = [column] * several["column"] + [sweep.label] * several["sweep"]
            about = partial(paint, spec=spec, view=view, column=column, sweep=sweep, by=by)
            drawings.append(Drawing(captions.name(spec, view, *more), width, height, about))
    return drawings


def _none(figure: Any, spec: Spec, view: View, by: str) -> None:
    empty_panel(figure.subplots(), f"no run lies along {AXES.get(by, by)}")
    add_title(figure, spec, view, spec["kind"], view.runs)


def _fairness(figure: Any, spec: Spec, view: View, column: str, sweep: Sweep, by: str) -> None:
    axes = figure.subplots(2, 2)
    scores = view.scores(spec.get("score", "both"))
    for axis, name in zip(axes.flat, ("std", "jain", "alpha_cv"), strict=False):
        for score in scores if MEASURES[name].scored else ("",):
            _against_axis(axis, view, column, sweep, by, name, score)
    _against_variation(axes[1, 1], view, column, sweep, by, scores)
    axes[0, 0].set_ylabel("std over clients, %  (less is fairer)")
    axes[0, 1].set_ylabel("Jain's index  (more is fairer)")
    axes[1, 0].set_ylabel("CV of α over clients")
    _head(figure, spec, view, column, sweep, f"Fairness and variation of α by {AXES.get(by, by)}")
    add_footer(figure, axes.flat, missing(view, [column]))


def _weights(figure: Any, spec: Spec, view: View, column: str, sweep: Sweep, by: str) -> None:
    axes = figure.subplots(1, 3)
    _alphas(axes[0], view, column, sweep, by)
    for axis, name in zip(axes[1:], ("entropy", "largest"), strict=True):
        _against_axis(axis, view, column, sweep, by, name, "")
    K = _models(view, column, sweep)
    axes[1].set_ylabel("entropy of w, mean over clients")
    axes[2].set_ylabel("largest w, mean over clients")
    if K:
        _level(axes[1], np.log(K), f"log {K}: all models equal")
        _level(axes[2], 1 / K, f"1/{K}: all models equal", below=True)  # the largest w is never below it
        axes[1].set_ylim(-0.05, 1.15 * np.log(K) + 0.05)
        axes[2].set_ylim(0, 1.08)
    _head(figure, spec, view, column, sweep, f"How {AXES.get(by, by)} shapes α and w")
    add_footer(figure, axes, missing(view, [column]))


def _against_axis(axis: Any, view: View, column: str, sweep: Sweep, by: str, name: str, score: str) -> None:
    place = placed([sweep], by)
    x = [place[value] for value in sweep.at]
    y, over_seeds = (f(view, column, sweep.lines, name, score) for f in (means, stds))
    if np.isnan(y).all():
        empty_panel(axis, f"no run has {MEASURES[name].head}")
    spread = over_seeds if over_seeds.any() else None
    label = f"{score or sweep.label}{'' if spread is None else ', ± over seeds'}"
    axis.errorbar(x, y, yerr=spread, lw=1.5, ms=5.5, capsize=2.5, elinewidth=1, label=for_plot(label), **SCORE_STYLES[score])
    if score in ("", AS_PUBLISHED, published_score(sweep.row.lower())):
        draw_paper(axis, column, by, name, sweep, place)
    log_axis(axis, place, by)
    axis.set_xlabel(NAMES.get(by, by))


def _against_variation(axis: Any, view: View, column: str, sweep: Sweep, by: str, scores: Sequence[str]) -> None:
    variation = means(view, column, sweep.lines, "alpha_cv", "")
    for score in scores:
        spread = means(view, column, sweep.lines, "std", score)
        axis.plot(variation, spread, lw=1, ms=5.5, **SCORE_STYLES[score] | {"ls": ":"})
    axis.set_xlabel("CV of α over clients")
    axis.set_ylabel("std over clients, %")
    axis.margins(x=0.25, y=0.15)
    if np.isfinite(variation).any():
        axis.set_xlim(left=-0.06 * np.nanmax(variation))
    _label_points(axis, [(variation[i], spread[i], f"{AXES.get(by, by)} = {value:g}") for i, value in enumerate(sweep.at)])


def _label_points(axis: Any, points: Sequence[tuple[float, float, str]]) -> None:
    """A name to the right of each point (x, y, name), without overlap; the limits of the axis must be set before."""
    to_axes = axis.transData + axis.transAxes.inverted()
    places = [(*to_axes.transform((x, y)), x, y, name) for x, y, name in points if np.isfinite(x) and np.isfinite(y)]
    places.sort(key=lambda place: place[1])
    heights = spread_out([height for _, height, *_ in places], 10 / 72 / LABELLED_HEIGHT)
    for (left, _, x, y, name), height in zip(places, heights, strict=True):
        line = {"arrowstyle": "-", "color": QUIET, "lw": 0.5, "shrinkA": 1, "shrinkB": 4}
        text = {"textcoords": "axes fraction", "va": "center", "fontsize": 8, "color": QUIET, "arrowprops": line}
        axis.annotate(name, (x, y), (left + 0.07, height), **text)


def _alphas(axis: Any, view: View, column: str, sweep: Sweep, by: str) -> None:
    """Boxes over all clients and seeds, with the clients themselves where they are few; times M, so that 1 is like all others."""
    drawn: list[float] = []
    for position, line in enumerate(sweep.lines):
        seeds = clients(view, column, line, "alpha")
        if not seeds:
            continue
        relative = np.concatenate([len(alpha) * alpha for alpha in seeds])
        drawn += relative.tolist()
        axis.boxplot(
            relative,
            positions=[position],
            widths=0.5,
            showfliers=len(relative) > FEW,
            medianprops={"color": "#D55E00", "lw": 1.6},
        )
        if len(relative) <= FEW:
            jitter = np.random.default_rng(position).uniform(-0.17, 0.17, len(relative))
            axis.plot(position + jitter, relative, ls="none", marker="o", ms=3, color="#0072B2", alpha=0.55)
    axis.set_xticks(range(len(sweep.at)), [f"{value:g}" for value in sweep.at])
    axis.set_xlim(-0.6, len(sweep.at) - 0.4)
    axis.set_xlabel(NAMES.get(by, by))
    axis.set_ylabel("M × α of each client")
    if not drawn:
        empty_panel(axis, "no run has α")
        return
    _level(axis, 1.0, "1: all clients equal", "right")
    if min(drawn) > 0 and max(drawn) > 8 * min(drawn):
        from matplotlib.ticker import LogLocator, NullFormatter

        axis.set_yscale("log")
        few_decades = max(drawn) < 1000 * min(drawn)
        axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0) if few_decades else (1.0,)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter(NullFormatter())


def _level(axis: Any, level: float, name: str, side: str = "left", below: bool = False) -> None:
    axis.axhline(level, color=QUIET, ls="--", lw=1)
    place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "fontsize": 8, "color": QUIET}
    axis.annotate(name, (0.02 if side == "left" else 0.98, level), (0, -12 if below else 5), ha=side, **place)


def _models(view: View, column: str, sweep: Sweep) -> int | None:
    """K, where all runs have the same."""
    known = {run["models"] for line in sweep.lines for run in view.planned(column, line)}
    return known.pop() if len(known) == 1 else None


def _head(figure: Any, spec: Spec, view: View, column: str, sweep: Sweep, what: str) -> None:
    runs = [run for line in sweep.lines for run in view.planned(column, line)]
    add_title(figure, spec, view, f"{what}, {sweep.label}", runs)
