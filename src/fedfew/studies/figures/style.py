"""Style of the figures of studies: nothing is shown by colour alone, lines are labelled where they end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fedfew.studies import captions
from fedfew.studies.measures import AS_PUBLISHED
from fedfew.studies.view import Run, View
from fedfew.util.printable import for_plot
from fedfew.util.spelling import counted

# Okabe and Ito's colours, but for the yellow, which is too pale for lines on white; then three of Tol's and a grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9", "#882255", "#7A7A7A", "#999933")
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 3)))
MARKS = "oDs^vPX*<>p"
METHODS = ("fedfew", "fedavg", "fedprox", "fedmtl", "apfl", "ditto", "fedrep", "fedamp", "ifca", "local")
PAPER: dict[str, Any] = {"marker": "*", "color": "#000000", "mfc": "#ffffff", "ms": 10, "ls": "none", "zorder": 5}
QUIET = "#555555"
TITLE_SIZE, NOTE_SIZE = 10, 7.5
MEANING = {
    "served": "served: as the server sends it",
    "adapted": "adapted: after local training",
    AS_PUBLISHED: "scored as published",
}


@dataclass(frozen=True)
class Drawing:
    """One picture, not drawn yet."""

    name: str  # that of its files
    width: float  # inches
    height: float
    paint: Callable[[Any], None]  # on a matplotlib Figure


def one_per_column(spec: Mapping[str, Any], view: View, paint: Callable[..., None]) -> list[Drawing]:
    """One picture per data set, with a panel per score."""
    scores = view.scores(spec.get("score", "both"))
    return [
        Drawing(
            captions.name(spec, view, column if len(view.columns) > 1 else ""),
            1.6 + 4.4 * len(scores),
            5.0,
            partial(paint, spec=spec, view=view, column=column, scores=scores),
        )
        for column in view.columns
    ]


def method_style(row: str, position: int) -> dict[str, Any]:
    """Colour, dashes and marker of a method: the same in every figure; unknown ones take what is left, in order."""
    name = row.lower()
    place = METHODS.index(name) if name in METHODS else len(METHODS) + position
    return _style(place) | {"lw": 2.4 if name == "fedfew" else 1.3, "zorder": 3 if name == "fedfew" else 2}


def line_styles(rows: Sequence[str]) -> list[dict[str, Any]]:
    """Styles of several lines; those of one method at several grid points get a style each."""
    return [method_style(row if rows.count(row) == 1 else "", position) for position, row in enumerate(rows)]


def _style(place: int) -> dict[str, Any]:
    """Neighbours differ in colour, dashes and marker; no two of the first forty have the same dashes and marker."""
    return {
        "color": COLOURS[place % len(COLOURS)],
        "ls": DASHES[place % len(DASHES)],
        "marker": MARKS[place % len(MARKS)],
        "ms": 4.5,
    }


def ordered_styles(count: int) -> list[dict[str, Any]]:
    """Styles of lines that have an order, such as K: from dark to light, which grey keeps, dashes and markers in turn."""
    import matplotlib as mpl

    colours = mpl.colormaps["cividis"](np.linspace(0, 0.82, count))
    return [
        {"color": tuple(colours[i]), "ls": DASHES[i % 4], "marker": MARKS[i % len(MARKS)], "ms": 4, "lw": 1.5}
        for i in range(count)
    ]


def add_title(figure: Any, spec: Mapping[str, Any], view: View, what: str, runs: Iterable[Run]) -> None:
    """Title: what is shown; below it data, clients, rounds, seeds and protocol."""
    runs = list(runs)
    data = list(dict.fromkeys(f"{run['dataset']} {run['partition'] or ''}".strip() for run in runs))
    columns = {run["column"] for run in runs}
    about = [data[0]] if len(data) == 1 else [counted(len(columns), "federation")] if data else []
    facts = ", ".join([*about, captions.facts(runs), f"protocol {view.protocol}"])
    lines = [wrapped(part, figure.get_figwidth(), TITLE_SIZE) for part in (spec.get("title") or what, facts)]
    figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=TITLE_SIZE)


def wrapped(text: str, width: float, size: float) -> str:
    """The text in lines that are no wider than a figure of so many inches, at this font size."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=size)

    def inches(line: str) -> float:
        return float(text_to_path.get_text_width_height_descent(line.replace("\\$", "$"), font, ismath=False)[0]) / 72

    lines: list[str] = []
    for word in for_plot(text).split():
        if lines and inches(f"{lines[-1]} {word}") <= 0.96 * width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return "\n".join(lines)


def add_footer(figure: Any, axes: Iterable[Any], notes: str) -> None:
    """Below a figure one legend for all axes, and what is missing."""
    handles = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    width = figure.get_figwidth()
    text = wrapped(notes, width, NOTE_SIZE)
    if handles:
        widest = 0.6 + 0.078 * max(map(len, handles))  # inches, about
        columns = max(1, min(len(handles), int(width / widest)))
        figure.legend(
            handles.values(), handles.keys(), loc="outside lower center", ncols=columns, title=text, title_fontsize=NOTE_SIZE
        )
    elif text:
        figure.supxlabel(text, x=0.01, ha="left", fontsize=NOTE_SIZE, color=QUIET)


def missing(view: View, columns: Sequence[str]) -> str:
    """What is missing in the figure."""
    found: dict[str, list[str]] = {}
    for column in columns:
        for line in view.lines:
            for status, what in (("failed", "Failed"), ("missing", "Not run")):
                seeds = [str(run["seed"]) for run in view.planned(column, line) if run["status"] == status]
                if seeds:
                    word = "seeds" if len(seeds) > 1 else "seed"
                    found.setdefault(what, []).append(f"{line.label} on {column} ({word} {', '.join(seeds)})")
    shown = [
        f"{what}: {'; '.join(which[:4])}{f'; and {len(which) - 4} more' if len(which) > 4 else ''}."
        for what, which in found.items()
    ]
    return " ".join(shown)


def label_ends(axis: Any, ends: Sequence[tuple[float, float, str, Any]], height: float) -> None:
    """Names at the right of an axis, each beside the end of its line (x, y, name, colour), without overlap.

    height: of the axis in inches, about; limits and scales must be set before.
    """
    gap = 9.5 / 72 / height
    to_axes = axis.transData + axis.transAxes.inverted()
    heights = [float(to_axes.transform((x, y))[1]) for x, y, _, _ in ends]
    order = sorted(range(len(ends)), key=heights.__getitem__)
    places = spread([heights[i] for i in order], gap)
    for i, place in zip(order, places, strict=True):
        x, y, name, colour = ends[i]
        axis.annotate(
            "\n".join(map(for_plot, name.split("\n"))),
            xy=(x, y),
            xytext=(1.05, place),
            textcoords="axes fraction",
            va="center",
            fontsize=8,
            color=_darker(colour),
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "lw": 0.6, "shrinkA": 1, "shrinkB": 2},
        )


def _darker(colour: Any) -> tuple[float, ...]:
    """The same colour, darker: letters are thinner than lines."""
    from matplotlib.colors import to_rgb

    return tuple(0.68 * part for part in to_rgb(colour))


def ends_of(axis: Any) -> list[tuple[float, float, str, Any]]:
    """Where the lines of an axis end, for :func:`label_ends`."""
    return [(line.get_xdata()[-1], line.get_ydata()[-1], line.get_label(), line.get_color()) for line in axis.get_lines()]


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Ascending heights, moved no more than needed to lie a gap apart, and between 0 and 1 if there is room."""
    placed: list[list[float]] = []  # groups that touch: [sum of (height − offset), count]
    for height in heights:
        placed.append([height, 1])
        while len(placed) > 1 and _middle(placed[-2]) + gap * placed[-2][1] > _middle(placed[-1]):
            total, count = placed.pop()
            placed[-1][0] += total - gap * placed[-1][1] * count
            placed[-1][1] += count
    result = [_middle(group) + gap * i for group in placed for i in range(int(group[1]))]
    for i in range(len(result)):  # nothing below the axis
        result[i] = max(result[i], 0.0 if i == 0 else result[i - 1] + gap)
    for i in reversed(range(len(result))):  # nor above
        result[i] = min(result[i], 1.0 if i == len(result) - 1 else result[i + 1] - gap)
    return result


def _middle(group: Sequence[float]) -> float:
    return group[0] / group[1]


def empty_panel(axis: Any, why: str) -> None:
    """Write on an axis why it is empty."""
    axis.set_xticks([])
    axis.set_yticks([])
    axis.text(0.5, 0.5, why, transform=axis.transAxes, ha="center", va="center", color=QUIET)


def percent_limits(axes: Iterable[Any]) -> None:
    """Limits within 0 … 100 %, lower where a value is (an R²); to be called when everything is drawn: axes may share limits."""
    for axis in axes:
        low, high = axis.get_ylim()
        lowest = min(one.dataLim.ymin for one in axis.get_shared_y_axes().get_siblings(axis))
        axis.set_ylim(low if lowest < 0 else max(low, -1.0), min(high, 101.0))
