"""A table as data: every cell with its two kinds of spread, the paper's number, and what is missing."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedfew.util.printable import printable


@dataclass(frozen=True)
class Cell:
    """One number of a table, in the unit printed, and what belongs to it."""

    value: float | None
    over_clients: float | None = None  # ± over clients: population standard deviation, mean over seeds
    over_seeds: float | None = None  # ± over seeds: sample standard deviation of the seeds' values; None for one seed
    seeds: int = 0  # runs that it is the mean of
    paper: float | None = None
    paper_over_clients: float | None = None
    rank: int | None = None  # 1 best, 2 second of its column
    note: str = ""  # why there is no value, or not of all seeds: "not run", "failed: …", "2 of 3 seeds"
    paper_alike: bool = True  # False where the paper scored this method the other way (served, adapted)

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.value is None or self.paper is None else self.value - self.paper


@dataclass(frozen=True)
class TableData:
    name: str  # that of a file
    title: str
    caption: str
    protocol: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    unit: str
    notes: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()  # heading over several columns, one entry per column; () where there is none
    decimals: tuple[int, ...] = ()  # one entry per column

    def __post_init__(self) -> None:
        """Names come from a user's file, notes from errors: no form of a table must pass on a terminal's escape codes."""
        for field in ("title", "caption", "unit"):
            object.__setattr__(self, field, printable(getattr(self, field)))
        for field in ("columns", "notes", "groups"):
            object.__setattr__(self, field, tuple(map(printable, getattr(self, field))))
        rows = tuple((printable(label), tuple(replace(c, note=printable(c.note)) for c in cells)) for label, cells in self.rows)
        object.__setattr__(self, "rows", rows)

    @property
    def heads(self) -> tuple[str, ...]:
        """The columns' names without the heading of their group."""
        if not self.groups:
            return self.columns
        return tuple(column.removeprefix(group).strip() for column, group in zip(self.columns, self.groups, strict=True))

    def cells(self) -> list[Cell]:
        return [cell for _, cells in self.rows for cell in cells]
