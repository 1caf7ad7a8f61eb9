"""What figures draw: values by seed, curves over rounds, clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfew.studies.measures import MEASURES, score_of
from fedfew.studies.view import Line, View, point_label

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Sweep:
    """One method along one axis of a grid."""

    row: str
    label: str
    at: tuple[Any, ...]  # values of the axis, ascending
    lines: tuple[Line, ...]  # one for each


def sweeps(view: View, axis: str) -> tuple[list[Sweep], list[Line]]:
    """Lines along ``axis``, grouped by method and what else differs; and those that do not depend on it."""
    found: dict[Line, dict[Any, Line]] = {}
    apart: list[Line] = []
    for line in view.lines:
        value = line.at(axis)
        if value is None:
            apart.append(line)
            continue
        followers = _followers(view, line.row, axis)
        others = Line(line.row, tuple(pair for pair in line.point if pair[0] not in (axis, *followers)))
        found.setdefault(others, {})[value] = line
    several = len({others.row for others in found}) > 1
    result = []
    for others, lines in found.items():
        at = tuple(sorted(lines))
        name = others.label if several or len(found) == 1 else point_label(others.point)
        result.append(Sweep(others.row, name, at, tuple(lines[value] for value in at)))
    return result, apart


def _followers(view: View, row: str, axis: str) -> set[str]:
    """Axes that have one value for each of this one's: the rounds, where rounds × local epochs are the same throughout."""
    points = [dict(line.point) for line in view.lines if line.row == row and line.at(axis) is not None]
    others = {name for point in points for name in point} - {axis}
    pairs = {name: {(point[axis], point.get(name)) for point in points} for name in others}
    own = {point[axis] for point in points}
    return {name for name, found in pairs.items() if len(own) == len(found) > 1}


def values(view: View, column: str, line: Line, measure: str, score: str) -> Array:
    """A measure by seed; empty where no run is done."""
    found = [MEASURES[measure].of(run, score) for run in view.done(column, line)]
    return np.array([value for value in found if value is not None], dtype=np.float64)


def mean(seeds: Array) -> float:
    return float(seeds.mean()) if len(seeds) else float("nan")


def std(seeds: Array) -> float:
    """Over seeds, sample; 0 for a single one, which shows no spread."""
    return float(seeds.std(ddof=1)) if len(seeds) > 1 else 0.0


def means(view: View, column: str, lines: Sequence[Line], measure: str, score: str) -> Array:
    return np.array([mean(values(view, column, line, measure, score)) for line in lines])


def stds(view: View, column: str, lines: Sequence[Line], measure: str, score: str) -> Array:
    return np.array([std(values(view, column, line, measure, score)) for line in lines])


@dataclass(frozen=True)
class Curve:
    """Over rounds: the mean of the seeds, and the lowest and highest of them."""

    rounds: Array
    mean: Array
    low: Array
    high: Array


def curve(view: View, column: str, line: Line, field: str, score: str = "", factor: float = 1.0) -> Curve | None:
    """Of a column of the table ``rounds``, in the rounds that all seeds have scored; None where no seed has it."""
    seeds: list[Mapping[int, float]] = []
    for run in view.done(column, line):
        name = field.format(score=score_of(run, score))
        if known := view.of_key(view.results.rounds, run["key"], "round", name):
            seeds.append(known)
    rounds = sorted(set.intersection(*(set(seed) for seed in seeds))) if seeds else []
    if not rounds:
        return None
    table = factor * np.array([[seed[number] for number in rounds] for seed in seeds])
    return Curve(np.array(rounds, dtype=np.float64), table.mean(0), table.min(0), table.max(0))


def clients(view: View, column: str, line: Line, field: str, score: str = "") -> list[Array]:
    """A column of the table ``clients``, one array per seed; clients without a value are left out."""
    found = []
    for run in view.done(column, line):
        name = field.format(score=score_of(run, score))
        found.append(np.array(list(view.of_key(view.results.clients, run["key"], "client", name).values()), dtype=np.float64))
    return [seed for seed in found if len(seed)]
