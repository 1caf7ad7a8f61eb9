"""The shapes of what a study file holds: mappings, lists, texts. An error names the file and the place in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedfew.util.printable import printable
from fedfew.util.spelling import unknown

MOST_ENTRIES = 1_000


class StudyError(ValueError):
    """An error in a study file: which file, where in it, what is written there and what would be right."""


@dataclass(frozen=True)
class Shapes:
    """Checks of the contents of a file."""

    source: str  # the file, as the user named it

    def mapping(self, value: Any, place: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise self.error(place, f"{short(value)} must be names and values, 'name: value'")
        return {str(key): inner for key, inner in value.items()}

    def list_of(self, value: Any, place: str, wanted: str) -> list[Any]:
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise self.error(place, f"{short(value)} must be {wanted}")
        if len(value) > MOST_ENTRIES:
            raise self.error(place, f"has {len(value):,} entries, and at most {MOST_ENTRIES:,} are possible")
        return list(value)

    def text(self, document: dict[str, Any], key: str, default: str | None = None) -> str:
        value = document.get(key, default)
        if value is None:
            raise self.error(key, "is missing")
        if isinstance(value, Mapping | list | bool):
            raise self.error(key, f"{short(value)} must be text")
        return printable(" ".join(str(value).split()))

    def check_known(self, given: Iterable[str], known: Iterable[str], place: str, kind: str) -> None:
        for name in given:
            if name not in known:
                raise self.error(place, unknown(kind, name, known))

    def error(self, place: str, message: object) -> StudyError:
        return StudyError(f"{self.source}, {place}: {message}")

    def distinct(self, value: Any, place: str, wanted: str) -> list[Any]:
        """A list with at least one entry, and none twice."""
        found = self.list_of(value, place, wanted)
        if not found or any(entry in found[:i] for i, entry in enumerate(found)):
            raise self.error(place, f"{short(value)} is empty, or names a value twice")
        return found


def short(value: Any) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**50 else "a number of more than 50 digits"
    return text if len(text) <= 60 else text[:59] + "…"
