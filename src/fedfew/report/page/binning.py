"""What fits on a page: rounds thinned, and clients put together in bins where there are too many to show one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

ROUNDS = 200  # at most so many are drawn
SINGLE = 400  # up to so many clients have a row of their own
BINS = 200  # above that they share so many
CELLS = 1_000_000  # rows × rounds × models at most, for w: with very many models fewer rounds are drawn


def thinned(scored: int, rows: int, models: int) -> Array:
    """Positions of the scored rounds that are drawn: evenly spaced, the last one always."""
    most = max(2, min(ROUNDS, CELLS // max(1, rows * models)))
    if scored <= most:
        return np.arange(scored)
    return np.rint(np.linspace(0, scored - 1, most)).astype(np.int64)


@dataclass(frozen=True)
class Rows:
    """Rows of a heat map: a client each, or a bin of clients that are alike in model, group and accuracy."""

    of: Array  # [M]: the row that a client is in
    size: Array  # clients in each
    order: Array  # rows by model, group and accuracy

    @property
    def binned(self) -> bool:
        return bool(self.size.max() > 1)

    def __len__(self) -> int:
        return len(self.size)

    def mean(self, values: Array) -> Array:
        """Means over the clients of each row, ``[M, …] → [rows, …]``; NaN where no client has a value."""
        if not self.binned:
            return np.asarray(values, dtype=np.float64)
        flat = np.asarray(values, dtype=np.float64).reshape(len(self.of), -1)
        known = ~np.isnan(flat)
        sums, counts = np.zeros((len(self), flat.shape[1])), np.zeros((len(self), flat.shape[1]))
        for column in range(flat.shape[1]):
            at = known[:, column]
            sums[:, column] = np.bincount(self.of[at], flat[at, column], len(self))
            counts[:, column] = np.bincount(self.of[at], minlength=len(self))
        means = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
        return means.reshape(len(self), *np.shape(values)[1:])

    def most_frequent(self, choice: Array, models: int) -> Array:
        """The model that most clients of each row use (the first of equals); −1 where none is known."""
        if not self.binned:
            return np.asarray(choice)
        known = choice >= 0
        codes = self.of[known] * models + choice[known]
        counts = np.bincount(codes, minlength=len(self) * models).reshape(len(self), models)
        return np.where(counts.sum(1) > 0, counts.argmax(1), -1)


def arranged(choice: Array, groups: Array, served: Array) -> Rows:
    """Clients [M] in rows, by the model they use now, then by true group, then by served accuracy."""
    clients = len(choice)
    order = np.lexsort((np.nan_to_num(served, nan=-1.0), groups, choice))
    if clients <= SINGLE:
        return Rows(np.arange(clients), np.ones(clients, dtype=np.int64), order)
    alike = _alike(choice, groups)
    used, counts = np.unique(alike, return_counts=True)
    spare = BINS - len(used)
    parts: list[Array] = []
    for count, members in zip(counts, np.split(order, np.cumsum(counts)[:-1]), strict=True):
        parts += np.array_split(members, min(count, 1 + int(spare * count / clients)))
    of = np.empty(clients, dtype=np.int64)
    for row, members in enumerate(parts):
        of[members] = row
    return Rows(of, np.array([len(members) for members in parts]), np.arange(len(parts)))


def _alike(choice: Array, groups: Array) -> Array:
    """Which clients may share a bin: those of one model and one true group; of one model where that makes too many kinds; any."""
    _, both = np.unique(np.stack([choice, groups], axis=1), axis=0, return_inverse=True)
    for kinds in (both.reshape(-1), np.unique(choice, return_inverse=True)[1]):
        if kinds.max() < BINS // 2:
            return kinds
    return np.zeros_like(choice)
