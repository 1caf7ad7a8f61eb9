"""Each client's rows split into training, validation and test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedfew.data import raw
from fedfew.data.errors import DataError, OnBad
from fedfew.data.partition import Indices, rows_by_code
from fedfew.util.spelling import counted

TEST, VAL, TRAIN = 0, 1, 2


@dataclass(frozen=True)
class Cut:
    """One client's rows per split."""

    train: Indices
    val: Indices
    test: Indices


def check_shares(test_share: float, val_share: float) -> None:
    if not 0 < test_share < 1:
        raise ValueError(f"test_share must lie between 0 and 1, not {test_share}")
    if not 0 <= val_share < 1 - test_share:
        raise ValueError(f"val_share must lie between 0 and 1 − test_share = {1 - test_share:g}, not {val_share}")


def amounts(samples: int, test_share: float, val_share: float, who: str) -> tuple[int, int]:
    """How many of a client's samples go to test and to validation: the share, rounded, but at least one per split."""
    sides = 3 if val_share else 2
    if samples < sides:
        raise DataError(
            f"{who} has {counted(samples, 'sample')}, too few for {sides} splits: "
            'use fewer clients or a more even partition (on_bad="skip" leaves such clients out)'
        )
    test = min(max(1, round(samples * test_share)), samples - sides + 1)
    val = min(max(1, round(samples * val_share)), samples - test - 1) if val_share else 0
    return test, val


def plain(part: Indices, test_share: float, val_share: float, who: str) -> Cut:
    """The first rows (they are shuffled) are for test, the next for validation."""
    test, val = amounts(len(part), test_share, val_share, who)
    return Cut(train=part[test + val :], val=part[test : test + val], test=part[:test])


def stratified(part: Indices, labels: Indices, test_share: float, val_share: float, who: str) -> Cut:
    """Every class has, as nearly as whole numbers allow, the same share in each split; the totals are those of :func:`plain`."""
    test, val = amounts(len(part), test_share, val_share, who)
    members = [part[labels[part] == label] for label in np.unique(labels[part])]
    sizes = np.array([len(m) for m in members])
    tests = _proportional(sizes, test, sizes)
    vals = _proportional(sizes, val, sizes - tests)
    return Cut(
        train=np.concatenate([m[t + v :] for m, t, v in zip(members, tests, vals, strict=True)]),
        val=np.concatenate([m[t : t + v] for m, t, v in zip(members, tests, vals, strict=True)]),
        test=np.concatenate([m[:t] for m, t, v in zip(members, tests, vals, strict=True)]),
    )


def _proportional(sizes: Indices, total: int, room: Indices) -> Indices:
    """``total`` divided in proportion to ``sizes`` (largest remainders), never more than ``room``."""
    exact = sizes * total / sizes.sum()
    share = np.minimum(np.floor(exact).astype(np.int64), room)
    while share.sum() < total:
        share[np.where(share < room, exact - share, -np.inf).argmax()] += 1
    return share


def grouped(
    part: Indices, groups: Indices, column: str, test_share: float, val_share: float, who: str, sides: dict[int, int]
) -> Cut:
    """Rows of one group (a lesion, a patient) are all in one split, at this client and at every other.

    sides: the split of each group that an earlier client has; groups of this client that are new are added.
    """
    test, val = amounts(len(part), test_share, val_share, who)
    goal = {TEST: test, VAL: val, TRAIN: len(part) - test - val}
    present, first, inverse = np.unique(groups[part], return_index=True, return_inverse=True)
    rows_of = {int(group): part[rows] for group, rows in zip(present, rows_by_code(inverse), strict=True)}
    order = [int(group) for group in present[np.argsort(first)]]  # random, because rows are shuffled
    filled = dict.fromkeys(goal, 0)
    for group in order:
        if group in sides:
            filled[sides[group]] += len(rows_of[group])
    new = [group for group in order if group not in sides]
    for i, group in enumerate(new):
        empty = [side for side in (TRAIN, TEST, VAL) if goal[side] and not filled[side]]
        lacking = {side: goal[side] - filled[side] for side in goal if goal[side]}
        # The last groups must fill the splits that are still empty; otherwise a group goes where most rows are lacking.
        side = empty[0] if empty and len(new) - i <= len(empty) else max(lacking, key=lambda s: (lacking[s], s))
        sides[group] = side
        filled[side] += len(rows_of[group])
    if any(goal[side] and not filled[side] for side in goal):
        splits = sum(map(bool, goal.values()))
        raise DataError(
            f"{who} cannot be split into {splits}: its {len(part)} rows have {len(order)} different {column} values, and rows of "
            f"one {column} stay together: use fewer clients, another partition or no group "
            '(on_bad="skip" leaves such clients out)'
        )
    chosen = {side: [rows_of[g] for g in order if sides[g] == side] for side in goal}
    empty_rows = part[:0]
    return Cut(*(np.concatenate([empty_rows, *chosen[side]]) for side in (TRAIN, VAL, TEST)))


def given(part: Indices, splits: NDArray[np.int8], val_share: float, who: str) -> Cut:
    """The split that the source has; there may be no validation rows if ``val_share`` is to be drawn from the training rows."""
    train, val, test = (part[splits[part] == side] for side in (raw.TRAIN, raw.VAL, raw.TEST))
    needed = {"training": train, "test": test} | ({"validation": val} if raw.VAL in splits and not val_share else {})
    empty = [name for name, rows in needed.items() if not len(rows)]
    if empty:
        raise DataError(
            f"{who} has no {empty[0]} rows in the split that the data set comes with: use fewer clients or another partition, "
            "or give test_share=… to merge the splits and split again"
        )
    return Cut(train, val, test)


@dataclass(frozen=True)
class Cutter:
    """How the rows of every client are split: as given by the source, by class, by group, or else plainly."""

    test_share: float
    val_share: float
    labels: Indices | None = None  # stratify by these
    units: Indices | None = None  # rows with the same number stay in one split
    group: str = ""  # the column that ``units`` come from, for messages
    splits: NDArray[np.int8] | None = None  # the source's own split
    sides: dict[int, int] = field(default_factory=dict)

    def cut(self, part: Indices, who: str) -> Cut:
        if self.splits is None:
            return self._drawn(part, self.test_share, self.val_share, who)
        cut = given(part, self.splits, self.val_share, who)
        if not self.val_share or len(cut.val):
            return cut
        drawn = self._drawn(cut.train, self.val_share, 0.0, who)
        return Cut(train=drawn.train, val=drawn.test, test=cut.test)

    def _drawn(self, part: Indices, test_share: float, val_share: float, who: str) -> Cut:
        if self.units is not None:
            return grouped(part, self.units, self.group, test_share, val_share, who, self.sides)
        if self.labels is not None:
            return stratified(part, self.labels, test_share, val_share, who)
        return plain(part, test_share, val_share, who)


def cut_clients(
    parts: Sequence[Indices], names: Sequence[str], cutter: Cutter, on_bad: OnBad
) -> tuple[list[Cut], list[str], list[str]]:
    """One cut and name per client, and why clients were left out (only with ``on_bad="skip"``)."""
    cuts, kept, skipped = [], [], []
    for client, (part, name) in enumerate(zip(parts, names, strict=True)):
        who = f"client {client}" if name == str(client) else f"client {client} ({name})"
        try:
            cuts.append(cutter.cut(part, who))
            kept.append(name)
        except DataError as error:
            if on_bad == "raise":
                raise
            skipped.append(str(error))
    if not cuts:
        raise DataError(f"no client can be split: {skipped[-1]}")
    return cuts, kept, skipped
