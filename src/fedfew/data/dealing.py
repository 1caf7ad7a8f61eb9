"""Partitions as people write them: ``dirichlet:0.5``, ``by:writer_id``, ``iid+label-permutation``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedfew.data import partition as deal
from fedfew.data.errors import DataError
from fedfew.data.partition import Indices
from fedfew.data.rows import Rows
from fedfew.util.spelling import unknown

DEALS = ("iid", "dirichlet", "dirichlet-published", "pathological", "quantity", "by")
SHIFTS = ("rotation", "label-permutation")
GROUPS = 4  # different concepts in a concept shift, unless said otherwise
_DEFAULT = {"dirichlet": "0.5", "dirichlet-published": "0.1", "pathological": "2", "quantity": "0.5"}


@dataclass(frozen=True)
class Dealing:
    """Who gets which rows (``how``, ``value``), and how clients' concepts differ (``shift``, in ``groups`` groups)."""

    how: str
    value: str = ""
    shift: str | None = None
    groups: int = GROUPS

    @classmethod
    def parse(cls, text: str) -> Dealing:
        how, value, shift, groups = "iid", "", None, GROUPS
        words = text.split("+")
        if len(words) > 2:
            raise ValueError(
                f"partition {text!r} joins {len(words)} things: at most a partition and a shift, e.g. dirichlet:0.5+rotation"
            )
        for place, word in enumerate(words):
            name, colon, rest = word.partition(":")
            if name not in DEALS + SHIFTS or (place == 1 and name in DEALS):
                raise unknown("shift" if place else "partition", name, SHIFTS if place else DEALS + SHIFTS)
            if colon and not rest:
                raise ValueError(f"partition {text!r}: nothing follows the colon")
            if name in SHIFTS:
                if shift is not None:
                    raise ValueError(f"partition {text!r} shifts twice")
                shift, groups = name, _whole(text, rest or str(GROUPS))
                if groups < 2 or (name == "rotation" and groups not in (2, 4)):
                    raise ValueError(f"partition {text!r}: {name} makes {'2 or 4' if name == 'rotation' else '≥ 2'} groups")
            else:
                how, value = name, rest or _DEFAULT.get(name, "")
        if how == "by" and not value:
            raise ValueError("partition 'by' needs a column, e.g. by:writer_id")
        if how == "iid" and value:
            raise ValueError(f"partition {text!r}: iid takes no value")
        if how in _DEFAULT:
            _whole(text, value) if how == "pathological" else _real(text, value)  # complain now, not after reading the data
        return cls(how, value, shift, groups)

    def __str__(self) -> str:
        shift = self.shift and (self.shift if self.groups == GROUPS else f"{self.shift}:{self.groups}")
        if shift and self.how == "iid":
            return shift
        base = f"{self.how}:{self.value}" if self.value else self.how
        return f"{base}+{shift}" if shift else base

    def parts(
        self,
        rows: Rows,
        clients: int | None,
        rng: np.random.Generator,
        *,
        at_least: int | None,
        least: int,
        units: Indices | None,
    ) -> list[Indices]:
        """Each client's rows.

        at_least: samples a client must have, where the user says so; least: where not, and the partition has no rule of its own.
        units: rows with the same number here (images of one lesion) go to one client.
        """
        if self.how == "by":
            return self._by_column(rows, clients, rng)
        if clients is None:
            raise ValueError(f"partition {self} needs clients=…")
        labels, first, inverse = rows.y, None, None
        if units is not None:
            _, first, inverse = np.unique(units, return_index=True, return_inverse=True)
            labels = rows.y[first]
        fewest = least if at_least is None else at_least
        if self.how == "iid":
            parts = deal.iid(len(labels), clients, rng)
        elif self.how == "dirichlet":
            parts = deal.dirichlet(labels, clients, float(self.value), rng, fewest)
        elif self.how == "dirichlet-published":
            fewest = deal.PUBLISHED_LEAST if at_least is None else at_least
            parts = deal.dirichlet_published(labels, clients, float(self.value), rng, fewest)
        elif self.how == "pathological":
            parts = deal.pathological(labels, clients, int(self.value), rng)
        else:
            parts = deal.quantity(len(labels), clients, float(self.value), rng, fewest)
        if inverse is None:
            return parts
        members = deal.together(inverse)
        return [np.concatenate([members[unit] for unit in part]) for part in parts]

    def _by_column(self, rows: Rows, clients: int | None, rng: np.random.Generator) -> list[Indices]:
        if self.value not in rows.columns:
            there = ", ".join(rows.columns) or "none"
            raise DataError(f"partition {self}: there is no column {self.value!r} to deal by (there is: {there})")
        try:
            return deal.by_value(rows.columns[self.value].codes, clients, rng)
        except ValueError as error:
            raise ValueError(f"partition {self}: {error}") from error


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
