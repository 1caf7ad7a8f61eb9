"""Paths, and names made from them, in what commands print."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.markup import escape

from fedfew.util.files import check_writable
from fedfew.util.printable import printable


def shown(place: Path | str) -> str:
    """In a text with rich's markup, which would take brackets in a name for its own."""
    return escape(printable(str(place)))


def check_output(path: Path, force: bool) -> None:
    """Refuse a file that cannot be written, or that is there already and must not be overwritten."""
    if path.exists() and not force:
        raise ValueError(f"{path} already exists: replace it (--force), or choose another name")
    check_writable(path)


def argument(place: Path | str) -> str:
    """As one word of a command to be typed; in double quotes where those do, since messages quote commands in single ones."""
    text = str(place)
    quoted = shlex.quote(text)
    return quoted if quoted == text or set(text) & set('"$`\\!') else f'"{text}"'
