"""What a user asks of a study beyond its file: which runs, how many seeds, how many rounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from fedfew.studies import protocol as protocols
from fedfew.studies import scale as scaling
from fedfew.studies.study import Study
from fedfew.util.spelling import counted, unknown


@dataclass(frozen=True)
class Options:
    """The options of ``fedfew study run`` that decide which runs there are."""

    protocols: tuple[str, ...] = ()  # (): those of the file
    seeds: int | None = None  # None: as many as the file says
    scale: float = 1.0
    only: tuple[str, ...] = ()
    sample: int | None = None  # keep only so many rows of every data set
    device: str | None = None
    data_dir: str | None = None

    def __post_init__(self) -> None:
        scaling.check(self.scale)
        if self.seeds is not None and self.seeds < 1:
            raise ValueError(f"--seeds must be ≥ 1, not {self.seeds}")
        if self.sample is not None and self.sample < 2:
            raise ValueError(f"--sample must be ≥ 2, not {self.sample}")
        for name in self.protocols:
            if name not in protocols.PROTOCOLS:
                raise unknown("protocol", name, protocols.PROTOCOLS)

    @property
    def length(self) -> str:
        """What must not be mixed in one table."""
        if self.sample is not None:
            rows = f", {counted(self.sample, 'row')} of each data set"
        else:
            rows = f", a smoke test: {scaling.ROWS} rows per client" if scaling.is_smoke_test(self.scale) else ""
        return f"scale {self.scale:g}{rows}"

    def seeds_of(self, study: Study, protocol: str) -> range:
        return range(self.seeds or (1 if scaling.is_smoke_test(self.scale) else study.seeds[protocol]))

    def selected(self, study: Study) -> Iterator[tuple[str, str]]:
        """The columns and rows that ``only`` names; all if it is empty."""
        for column in study.columns:
            for row in study.rows:
                if not self.only or any(_matches(pattern, column, row) for pattern in self.only):
                    yield column, row

    def check_only(self, study: Study) -> None:
        """Refuse a pattern that names nothing in the study."""
        for pattern in self.only:
            if not any(_matches(pattern, column, row) for column in study.columns for row in study.rows):
                raise unknown(f"column or row of {study.name} that fits --only", pattern, [*study.columns, *study.rows])


def _matches(pattern: str, column: str, row: str) -> bool:
    """``column/row``, or either of them; * and ? stand for anything, and case does not matter."""
    lower, column, row = pattern.lower(), column.lower(), row.lower()
    if "/" not in lower:
        return fnmatchcase(column, lower) or fnmatchcase(row, lower)
    for_column, _, for_row = lower.partition("/")
    return fnmatchcase(column, for_column or "*") and fnmatchcase(row, for_row or "*")
