"""Each client's rows cut into training, validation and test."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedfew.data.errors import DataError
from fedfew.data.partition import Indices, together

TEST, VAL, TRAIN = 0, 1, 2


@dataclass(frozen=True)
class Cut:
    """One client's rows on their sides."""

    train: Indices
    val: Indices
    test: Indices


def check_shares(test_share: float, val_share: float) -> None:
    if not 0 < test_share < 1:
        raise ValueError(f"test_share must lie between 0 and 1, not {test_share}")
    if not 0 <= val_share < 1 - test_share:
        raise ValueError(f"val_share must lie between 0 and 1 − test_share = {1 - test_share:g}, not {val_share}")


def amounts(samples: int, test_share: float, val_share: float, who: str = "a client") -> tuple[int, int]:
    """How many of a client's samples go to test and to validation: the share, rounded, but at least one a side."""
    sides = 3 if val_share else 2
    if samples < sides:
        raise DataError(
            f"{who} has {samples} sample{'s' if samples != 1 else ''}, too few to cut into {sides} sides: "
            "take fewer clients or a more even partition"
        )
    test = min(max(1, round(samples * test_share)), samples - sides + 1)
    val = min(max(1, round(samples * val_share)), samples - test - 1) if val_share else 0
    return test, val


def plain(part: Indices, test_share: float, val_share: float, who: str) -> Cut:
    """The first rows (they are shuffled) are for test, the next for validation."""
    test, val = amounts(len(part), test_share, val_share, who)
    return Cut(train=part[test + val :], val=part[test : test + val], test=part[:test])


def stratified(part: Indices, labels: Indices, test_share: float, val_share: float, who: str) -> Cut:
    """Every class has, as nearly as whole numbers allow, the same share on each side; the totals are those of :func:`plain`."""
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
    """``total`` divided in proportion to ``sizes`` (largest remainders), nowhere more than there is room."""
    exact = sizes * total / sizes.sum()
    share = np.minimum(np.floor(exact).astype(np.int64), room)
    while share.sum() < total:
        share[np.where(share < room, exact - share, -np.inf).argmax()] += 1
    return share


def grouped(
    part: Indices, groups: Indices, column: str, test_share: float, val_share: float, who: str, sides: dict[int, int]
) -> Cut:
    """Rows of one group (a lesion, a patient) are all on one side, here and at every other client.

    sides: which side groups are on that other clients have, too; those met here for the first time are added.
    """
    test, val = amounts(len(part), test_share, val_share, who)
    goal = {TEST: test, VAL: val, TRAIN: len(part) - test - val}
    present, first, inverse = np.unique(groups[part], return_index=True, return_inverse=True)
    rows_of = {int(group): part[rows] for group, rows in zip(present, together(inverse), strict=True)}
    met = [int(group) for group in present[np.argsort(first)]]  # the order of shuffled rows: random
    filled = dict.fromkeys(goal, 0)
    for group in met:
        if group in sides:
            filled[sides[group]] += len(rows_of[group])
    new = [group for group in met if group not in sides]
    for i, group in enumerate(new):
        empty = [side for side in (TRAIN, TEST, VAL) if goal[side] and not filled[side]]
        lacking = {side: goal[side] - filled[side] for side in goal if goal[side]}
        # The last groups left must fill the sides that are still empty; else a group goes where most is lacking.
        side = empty[0] if empty and len(new) - i <= len(empty) else max(lacking, key=lambda s: (lacking[s], s))
        sides[group] = side
        filled[side] += len(rows_of[group])
    if any(goal[side] and not filled[side] for side in goal):
        raise DataError(
            f"{who} cannot be cut: its {len(part)} rows have {len(met)} {column} in all, and one {column} belongs on one side: "
            "take fewer clients, another partition or no group"
        )
    chosen = {side: [rows_of[g] for g in met if sides[g] == side] for side in goal}
    empty_rows = part[:0]
    return Cut(*(np.concatenate([empty_rows, *chosen[side]]) for side in (TRAIN, VAL, TEST)))
