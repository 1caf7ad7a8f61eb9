"""Errors about data, and the choice between stopping and skipping."""

from __future__ import annotations

from typing import Literal

from fedfew.util.data_error import DataError

__all__ = ["BadRows", "DataError", "OnBad", "SkippedWarning"]

OnBad = Literal["raise", "skip"]


class SkippedWarning(UserWarning):
    """Rows or clients were left out because ``on_bad`` is "skip"."""


class BadRows:
    """Collects the rows that cannot be used, or raises at the first one."""

    def __init__(self, on_bad: OnBad) -> None:
        self.on_bad = on_bad
        self.found: dict[int, str] = {}

    def add(self, row: int, message: str) -> None:
        if self.on_bad == "raise":
            raise DataError(f'{message} (on_bad="skip" leaves such rows out)')
        self.found.setdefault(row, message)

    @property
    def messages(self) -> tuple[str, ...]:
        return tuple(self.found[row] for row in sorted(self.found))
