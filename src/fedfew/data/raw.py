"""A data set as read from files, before decoding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from numpy.typing import NDArray

from fedfew.data.decoded import Column

Kind = Literal["image", "text", "array"]
SPLITS = ("train", "val", "valid", "validation", "dev", "test")  # splits are concatenated in this order


@dataclass(frozen=True)
class ColumnChoice:
    """Columns named by the user or by the table of known data sets."""

    input: str | tuple[str, ...] | None = None
    label: tuple[str, ...] | None = None  # the first of these that exists
    excluded: tuple[str, ...] = ()  # never features: the columns to partition or group by


@dataclass(frozen=True)
class RawData:
    """Rows as stored in the files."""

    kind: Kind
    labels: list[Any]
    where: Callable[[int], str]  # names a row in messages
    image: Callable[[int], bytes] | None = None  # the encoded image of a row; OSError or DataError if there is none
    texts: list[str | None] | None = None
    array: NDArray[Any] | None = None
    label_names: tuple[str, ...] | None = None  # class names, if ``labels`` are class numbers
    columns: dict[str, Column] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)
