"""The paper's numbers, to be shown beside our own: see ``paper.yaml``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

Key = tuple[str, str, str, tuple[tuple[str, float], ...]]  # measure, column, row, grid point


@dataclass(frozen=True)
class Number:
    """One number, in the unit it is printed in."""

    value: float
    measure: str  # one of fedfew.studies.measures.MEASURES
    column: str
    row: str
    point: tuple[tuple[str, float], ...]  # () but in a sweep
    source: str  # name within paper.yaml: table1, …
    where: str  # in the paper

    @property
    def key(self) -> Key:
        return self.measure, self.column, self.row, self.point


@dataclass(frozen=True)
class Range:
    """A measure for which the paper gives a range only."""

    low: float
    high: float
    measure: str
    column: str
    row: str
    axis: str
    at: tuple[float, ...]  # values of the axis
    where: str


@cache
def numbers() -> dict[Key, Number]:
    """All of them; no two share a key."""
    found: dict[Key, Number] = {}
    for number in _numbers():
        if number.key in found:
            raise ValueError(f"paper.yaml gives {number.key} twice: in {found[number.key].source} and in {number.source}")
        found[number.key] = number
    return found


@cache
def ranges() -> tuple[Range, ...]:
    return tuple(Range(**entry | {"at": tuple(map(float, entry["at"]))}) for entry in _file()["ranges"])


def number(measure: str, column: str, row: str, point: Mapping[str, Any] | None = None) -> Number | None:
    """What the paper prints for a measure of a method (``row``) on data (``column``) at a grid point; None where nothing.

    Rounds are not an axis in the paper: they follow from the local epochs, since the updates are the same.
    """
    axes = [(axis, value) for axis, value in (point or {}).items() if axis != "rounds"]
    if not all(isinstance(value, int | float) for _, value in axes):
        return None
    return numbers().get((measure, column, row, tuple(sorted((axis, float(value)) for axis, value in axes))))


def updates(column: str) -> int | None:
    """Rounds × local epochs that the paper trained for on this data."""
    rounds: int | None = _file()["rounds"].get(column)
    return rounds


def _numbers() -> Iterator[Number]:
    for source, table in _file()["numbers"].items():
        for column, rows in table["columns"].items():
            for row, values in rows.items():
                points = values if isinstance(values, dict) else {None: values}
                for at, printed in points.items():
                    point = () if at is None else ((table["axis"], float(at)),)
                    for measure, value in zip(table["gives"], printed, strict=True):
                        yield Number(float(value), measure, column, row, point, source, table["where"])


@cache
def _file() -> dict[str, Any]:
    text = files("fedfew.studies").joinpath("paper.yaml").read_text(encoding="utf-8")
    document: dict[str, Any] = yaml.safe_load(text)
    return document
