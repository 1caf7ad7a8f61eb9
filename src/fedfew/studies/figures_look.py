"""How figures of studies look: nothing is told by colour alone, lines are named where they end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedfew.studies import wording
from fedfew.studies.measures import AS_PUBLISHED
from fedfew.studies.view import Run, View

# Okabe and Ito's colours, but for the yellow, which is too pale for lines on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 3)))
MARKS = "oDs^vPX*<>p"
METHODS = ("fedfew", "fedavg", "fedprox", "fedmtl", "apfl", "ditto", "fedrep", "fedamp", "ifca", "local")
PAPER: dict[str, Any] = {"marker": "*", "color": "#000000", "mfc": "#ffffff", "ms": 10, "ls": "none", "zorder": 5}
QUIET = "#555555"
MEANING = {"served": "served: as handed over", "adapted": "adapted: after local training", AS_PUBLISHED: "scored as published"}


@dataclass(frozen=True)
class Drawing:
    """One picture, not drawn yet."""

    name: str  # that of its files
    width: float  # inches
    height: float
    paint: Callable[[Any], None]  # on a matplotlib Figure


def of_method(row: str, position: int) -> dict[str, Any]:
    """Colour, dashes and marker of a method: the same in every figure; unknown ones take what is left, in order."""
    name = row.lower()
    place = METHODS.index(name) if name in METHODS else len(METHODS) + position
    return _style(place) | {"lw": 2.4 if name == "fedfew" else 1.3, "zorder": 3 if name == "fedfew" else 2}


def _style(place: int) -> dict[str, Any]:
    """No two of 42 places look alike, in colour or in grey: dashes change with every place and every lap of the colours."""
    dashes = DASHES[(place + place // len(COLOURS)) % len(DASHES)]
    return {"color": COLOURS[place % len(COLOURS)], "ls": dashes, "marker": MARKS[place % len(MARKS)], "ms": 4.5}


def along(count: int) -> list[dict[str, Any]]:
    """Styles of lines that have an order, such as K: from dark to light, which grey keeps, dashes and markers in turn."""
    import matplotlib as mpl

    colours = mpl.colormaps["cividis"](np.linspace(0, 0.82, count))
    return [
        {"color": tuple(colours[i]), "ls": DASHES[i % 4], "marker": MARKS[i % len(MARKS)], "ms": 4, "lw": 1.5}
        for i in range(count)
    ]


def headline(figure: Any, spec: Mapping[str, Any], view: View, what: str, runs: Iterable[Run], notes: str = "") -> None:
    """Title: what is shown; below it data, clients, rounds, protocol, seeds. At the foot, what is missing."""
    runs = list(runs)
    data = list(dict.fromkeys(f"{run['dataset']} {run['partition']}".strip() for run in runs))
    about = [data[0]] if len(data) == 1 else [f"{len(data)} federations"] if data else []
    facts = ", ".join([*about, wording.facts(runs), f"protocol {view.protocol}"])
    figure.suptitle(f"{spec.get('title') or what}\n{facts}", x=0.01, ha="left", fontsize=10)
    if notes:
        figure.supxlabel(notes, x=0.01, ha="left", fontsize=7.5, color=QUIET)


def missing(view: View, columns: Sequence[str]) -> str:
    """What ought to be in the figure but is not, in a line or two."""
    found: dict[str, list[str]] = {}
    for column in columns:
        for line in view.lines:
            for run in view.planned(column, line):
                if run["status"] != "done":
                    what = "failed" if run["status"] == "failed" else "not run"
                    found.setdefault(what, []).append(f"{line.label} on {column}, seed {run['seed']}")
    shown = [
        f"{what}: {'; '.join(which[:4])}{f' and {len(which) - 4} more' if len(which) > 4 else ''}"
        for what, which in found.items()
    ]
    return "\n".join(shown)


def label_ends(axis: Any, ends: Sequence[tuple[float, float, str, Any]], height: float) -> None:
    """Names at the right of an axis, each beside where its line ends (x, y, name, colour), none upon another.

    height: of the axis in inches, about; limits and scales must be set before.
    """
    if not ends:
        return
    gap = 9.5 / 72 / height
    to_axes = axis.transData + axis.transAxes.inverted()
    heights = [float(to_axes.transform((x, y))[1]) for x, y, _, _ in ends]
    order = sorted(range(len(ends)), key=heights.__getitem__)
    places = spread([heights[i] for i in order], gap)
    for i, place in zip(order, places, strict=True):
        x, y, name, colour = ends[i]
        axis.annotate(
            name,
            xy=(x, y),
            xytext=(1.05, place),
            textcoords="axes fraction",
            va="center",
            fontsize=8,
            color=colour,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "lw": 0.6, "shrinkA": 1, "shrinkB": 2},
        )


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


def nothing(axis: Any, why: str) -> None:
    """Say on an axis why it is empty."""
    axis.text(0.5, 0.5, why, transform=axis.transAxes, ha="center", va="center", color=QUIET)


def percent_limits(axis: Any) -> None:
    """No more of 0 … 100 % than is needed, and nothing beyond."""
    low, high = axis.get_ylim()
    axis.set_ylim(max(low, -1.0), min(high, 101.0))
