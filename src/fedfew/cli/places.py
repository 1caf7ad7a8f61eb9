"""Paths, and names made from them, in what commands print."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.markup import escape

from fedfew.util.printable import printable


def shown(place: Path | str) -> str:
    """In a text with rich's markup, which would take brackets in a name for its own."""
    return escape(printable(str(place)))


def argument(place: Path | str) -> str:
    """As one word of a command to be typed; in double quotes where those do, since messages quote commands in single ones."""
    text = str(place)
    quoted = shlex.quote(text)
    return quoted if quoted == text or set(text) & set('"$`\\!') else f'"{text}"'
