"""Partition specifications: ``dirichlet:0.5``, ``by:writer_id``, ``iid+label-permutation``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedfew.data import partition as partitions
from fedfew.data.decoded import DecodedData
from fedfew.data.errors import DataError
from fedfew.data.partition import Indices
from fedfew.util.spelling import unknown

PARTITIONS = ("iid", "dirichlet", "dirichlet-published", "pathological", "quantity", "by")
SHIFTS = ("rotation", "label-permutation")
GROUPS = 4  # number of different concepts in a concept shift, unless given
_DEFAULT = {"dirichlet": "0.5", "dirichlet-published": "0.1", "pathological": "2", "quantity": "0.5"}


@dataclass(frozen=True)
class PartitionSpec:
    """The rows per client (``kind``, ``value``), and how the clients' concepts differ (``shift``, in ``groups`` groups)."""

    kind: str
    value: str = ""
    shift: str | None = None
    groups: int = GROUPS

    @classmethod
    def parse(cls, text: str) -> PartitionSpec:
        kind, value, shift, groups = "iid", "", None, GROUPS
        words = text.split("+")
        if len(words) > 2:
            raise ValueError(
                f"partition {text!r} joins {len(words)} parts: at most a partition and a shift, e.g. dirichlet:0.5+rotation"
            )
        for place, word in enumerate(words):
            name, colon, rest = word.partition(":")
            if name not in PARTITIONS + SHIFTS or (place == 1 and name in PARTITIONS):
                raise unknown("shift" if place else "partition", name, SHIFTS if place else PARTITIONS + SHIFTS)
            if colon and not rest:
                raise ValueError(f"partition {text!r}: nothing follows the colon")
            if name in SHIFTS:
                if shift is not None:
                    raise ValueError(f"partition {text!r} names two shifts: at most one is possible")
                shift, groups = name, _whole(text, rest or str(GROUPS))
                if groups < 2 or (name == "rotation" and groups not in (2, 4)):
                    raise ValueError(f"partition {text!r}: {name} makes {'2 or 4' if name == 'rotation' else '≥ 2'} groups")
            else:
                kind, value = name, rest or _DEFAULT.get(name, "")
        if kind == "by" and not value:
            raise ValueError("partition 'by' needs a column, e.g. by:writer_id")
        if kind == "iid" and value:
            raise ValueError(f"partition {text!r}: iid takes no value")
        if kind in _DEFAULT:
            _whole(text, value) if kind == "pathological" else _real(text, value)  # fail now, not after reading the data
        return cls(kind, value, shift, groups)

    def __str__(self) -> str:
        shift = self.shift and (self.shift if self.groups == GROUPS else f"{self.shift}:{self.groups}")
        if shift and self.kind == "iid":
            return shift
        base = f"{self.kind}:{self.value}" if self.value else self.kind
        return f"{base}+{shift}" if shift else base

    @property
    def column(self) -> str | None:
        """The column whose values decide the client, for ``by:column``."""
        return self.value if self.kind == "by" else None

    def partition(
        self,
        data: DecodedData,
        clients: int | None,
        rng: np.random.Generator,
        *,
        at_least: int | None,
        fewest: int,
        units: Indices | None,
    ) -> list[Indices]:
        """Row indices per client.

        at_least: samples that every client must have, if the user set it. fewest: the same if not, for partitions without a rule
        of their own. units: rows with the same number here (images of one lesion) go to the same client, and are one sample to
        the partition.
        """
        if self.kind == "by":
            return self._by_column(data, clients, rng)
        if clients is None:
            raise ValueError(f"partition {self} needs clients=…")
        if self.kind in ("dirichlet", "dirichlet-published", "pathological") and data.task != "classification":
            raise DataError(
                f"partition {self} splits classes among clients, but the task is {data.task}: use iid, quantity or by"
            )
        least = fewest if at_least is None else at_least
        if units is None:
            return self._divide(data.y, clients, rng, at_least, least)
        _, first, inverse = np.unique(units, return_index=True, return_inverse=True)
        try:
            parts = self._divide(data.y[first], clients, rng, at_least, least)
        except ValueError as error:
            raise ValueError(f"{error} (rows of one group count as one sample here)") from error
        members = partitions.rows_by_code(inverse)
        return [np.concatenate([inverse[:0], *(members[unit] for unit in part)]) for part in parts]

    def _divide(self, labels: Indices, clients: int, rng: np.random.Generator, at_least: int | None, least: int) -> list[Indices]:
        """Samples with these labels divided among clients; at_least: None for the published variant's own rule."""
        if self.kind == "iid":
            return partitions.iid(len(labels), clients, rng)
        if self.kind == "dirichlet":
            return partitions.dirichlet(labels, clients, float(self.value), rng, least)
        if self.kind == "dirichlet-published":
            return partitions.dirichlet_published(labels, clients, float(self.value), rng, at_least)
        if self.kind == "pathological":
            return partitions.pathological(labels, clients, int(self.value), rng)
        return partitions.quantity(len(labels), clients, float(self.value), rng, least)

    def _by_column(self, data: DecodedData, clients: int | None, rng: np.random.Generator) -> list[Indices]:
        if self.value not in data.columns:
            if self.value in data.all_columns:
                raise DataError(f"partition {self}: the column is the label, or holds no names, and cannot tell clients apart")
            raise DataError(f"partition {self}: {unknown('column', self.value, data.all_columns)}")
        try:
            return partitions.by_value(data.columns[self.value].codes, clients, rng)
        except ValueError as error:
            raise ValueError(f"partition {self}: {error}") from error

    def client_names(self, data: DecodedData, parts: list[Indices]) -> list[str]:
        """The value of the column at clients that hold a single one, "value and 2 more" at others; the client's number if all
        hold several, or without a column."""
        held = self._values_held(data, parts)
        if all(len(values) != 1 for values in held):
            return [str(i) for i in range(len(parts))]
        return [values[0] if len(values) == 1 else f"{values[0]} and {len(values) - 1} more" for values in held]

    def naming_column(self, data: DecodedData, parts: list[Indices]) -> str | None:
        """The column whose values name the clients, where one holds a single value."""
        return self.column if any(len(values) == 1 for values in self._values_held(data, parts)) else None

    def _values_held(self, data: DecodedData, parts: list[Indices]) -> list[list[str]]:
        """The different values of the column at each client; none without a column."""
        if self.column is None:
            return [[] for _ in parts]
        column = data.columns[self.column]
        return [[column.values[code] for code in np.unique(column.codes[part])] for part in parts]


def _whole(text: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"partition {text!r}: {value!r} is not a whole number") from None


def _real(text: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"partition {text!r}: {value!r} is not a number") from None
