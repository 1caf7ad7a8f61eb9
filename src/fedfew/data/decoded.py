"""A data set after decoding and before partitioning: one row per sample."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfew.tasks import TaskName

Ints = NDArray[np.int64]
MISSING = "(missing)"  # the value of a column in rows that have none


def value_text(value: Any) -> str:
    """A value of an array as clients and groups are named after it, as in tables: 1.0 is 1; None and NaN are gaps."""
    if value is None or value != value:
        return MISSING
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


@dataclass(frozen=True)
class Column:
    """A column with few different values, stored as codes: row r has ``values[codes[r]]``."""

    codes: Ints
    values: tuple[str, ...]

    @classmethod
    def of(cls, values: list[Any]) -> Column:
        texts = [value_text(value) for value in values]
        code = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        return cls(np.array([code[text] for text in texts], dtype=np.int64), tuple(code))

    def take(self, rows: Ints) -> Column:
        return Column(self.codes[rows], self.values)


@dataclass(frozen=True)
class Words:
    """Texts split into words: text i is ``inventory[ids[offsets[i] : offsets[i + 1]]]``. No vocabulary is chosen yet."""

    ids: NDArray[np.int32]
    offsets: Ints
    inventory: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, rows: Ints) -> Words:
        lengths = (self.offsets[1:] - self.offsets[:-1])[rows]
        offsets = np.concatenate([[0], lengths.cumsum()])
        at = np.repeat(self.offsets[:-1][rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return Words(self.ids[at], offsets, self.inventory)


@dataclass(frozen=True)
class Features:
    """Columns of a table before scaling and one-hot encoding."""

    numbers: NDArray[np.float64]  # [N, number columns]; NaN: missing
    number_names: tuple[str, ...]
    categories: tuple[Column, ...]  # missing values are the category MISSING
    category_names: tuple[str, ...]
    boolean: tuple[str, ...] = ()  # number columns that are only 0 and 1

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, rows: Ints) -> Features:
        taken = tuple(column.take(rows) for column in self.categories)
        return Features(self.numbers[rows], self.number_names, taken, self.category_names, self.boolean)


@dataclass(frozen=True)
class DecodedData:
    """N samples with their labels."""

    # Images: bytes [N, C, H, W]; arrays: float32 [N, …] or token ids int64 [N, …]; texts: Words; tables: Features.
    x: NDArray[Any] | Words | Features
    y: NDArray[Any]  # class numbers int64 [N], or for other tasks float32 [N, d]
    class_names: tuple[str, ...]  # of classes, targets or labels
    columns: dict[str, Column]
    row: Ints  # row of the source that each sample came from
    total: int  # rows in the source, unusable ones included
    source: str  # hash of the source
    skipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    splits: NDArray[np.int8] | None = None  # TRAIN, VAL or TEST per row, if the source is split
    details: dict[str, Any] = field(default_factory=dict)  # how samples were decoded: JSON values

    def __len__(self) -> int:
        return len(self.y)

    @property
    def task(self) -> TaskName:
        task: TaskName = self.details.get("task", "classification")
        return task

    def take(self, rows: Ints) -> DecodedData:
        return DecodedData(
            x=self.x[rows] if isinstance(self.x, np.ndarray) else self.x.take(rows),
            y=self.y[rows],
            class_names=self.class_names,
            columns={name: column.take(rows) for name, column in self.columns.items()},
            row=self.row[rows],
            total=self.total,
            source=self.source,
            skipped=self.skipped,
            notes=self.notes,
            splits=None if self.splits is None else self.splits[rows],
            details=self.details,
        )

    @property
    def all_columns(self) -> list[str]:
        """All columns of the source."""
        columns = self.details.get("columns") or {"used": [], "left_out": self.columns}
        return [*columns["used"], *columns["left_out"]]

    @property
    def column_names(self) -> str:
        """The same, for messages."""
        return ", ".join(self.all_columns) or "none"

    def sampled(self, wanted: Ints) -> DecodedData:
        """Those of the wanted rows (row numbers of the source) that could be decoded."""
        return self.take(np.flatnonzero(np.isin(self.row, wanted)))
