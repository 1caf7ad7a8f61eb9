"""A data set as read from files, before decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedfew.data.decoded import Column, Features
from fedfew.data.errors import DataError

Kind = Literal["image", "text", "array", "table"]
SPLITS = ("train", "val", "valid", "validation", "dev", "test")  # splits are concatenated in this order
CLIENT = "client"  # the column of clients in data that is given per client
TRAIN, VAL, TEST = range(3)
SPLIT_CODES = {name: TRAIN if name == "train" else TEST if name == "test" else VAL for name in SPLITS}


@dataclass(frozen=True)
class ColumnChoice:
    """Columns named by the user or by the table of known data sets."""

    input: str | tuple[str, ...] | None = None
    label: tuple[str, ...] | None = None  # the first of these that exists
    excluded: tuple[str, ...] = ()  # never features: the columns to partition or group by
    labels: tuple[str, ...] | None = None  # all of these: several targets or labels per sample
    unlabelled: bool = False  # rows may have no label, as texts for language modelling

    def refuse(self, what: str, input: bool = True, label: bool = True) -> None:
        """Refuse the columns named, of data that have none."""
        named = {"input": self.input if input else None, "label": (self.labels or self.label) if label else None}
        for setting, names in named.items():
            if names is not None:
                wanted = names if isinstance(names, str) else ", ".join(names)
                raise DataError(f"{setting}={wanted!r}: {what} no columns to choose from")


@dataclass(frozen=True)
class RawData:
    """Rows as stored in the files."""

    kind: Kind
    labels: list[Any]
    where: Callable[[int], str]  # names a row in messages
    image: Callable[[int], bytes] | None = None  # the encoded image of a row; OSError or DataError if there is none
    image_files: tuple[str, ...] = ()  # the files that a column names
    texts: list[str | None] | None = None
    array: NDArray[Any] | None = None
    features: Features | None = None
    label_names: tuple[str, ...] | None = None  # class names, if ``labels`` are class numbers
    target_names: tuple[str, ...] = ()  # the columns that ``labels`` come from
    columns: dict[str, Column] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)  # columns that are not used, and why
    used: tuple[str, ...] = ()  # columns that are
    splits: NDArray[np.int8] | None = None  # TRAIN, VAL or TEST per row, if the source is split
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)


def split_codes(names: Sequence[str | None]) -> NDArray[np.int8] | None:
    """TRAIN, VAL or TEST per row from the names of splits; None unless every row has one, and not all have the same.

    Without a test split, the validation split is the test split.
    """
    if any(name is None or name.lower() not in SPLIT_CODES for name in names):
        return None
    codes = np.array([SPLIT_CODES[str(name).lower()] for name in names], dtype=np.int8)
    if TEST not in codes:
        codes[codes == VAL] = TEST
    return codes if {TRAIN, TEST} <= set(codes.tolist()) else None
