"""Words of messages: the nearest right word for a wrong one, and numbers with their nouns."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown(kind: str, word: str, known: Iterable[str]) -> ValueError:
    """An error saying that there is no such ``kind``, which one was probably meant, and which there are."""
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1)
    meant = f"; did you mean {close[0]!r}?" if close else ""
    return ValueError(f"there is no {kind} {word!r}{meant} (there are: {', '.join(known) or 'none'})")


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 run, 2 runs."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
