"""What went wrong at a site: in full in the site's own log, one word of it to the server."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WORDS = ("configuration", "data", "settings", "training", "state", "request")  # all that ever travels


class TroubleError(Exception):
    """A failure at a site, by the part of its work that failed."""

    def __init__(self, word: str) -> None:
        assert word in WORDS
        super().__init__(word)
        self.word = word


@contextmanager
def failing_as(word: str) -> Iterator[None]:
    """Any failure within is called by this word."""
    try:
        yield
    except TroubleError:
        raise
    except Exception as error:
        raise TroubleError(word) from error


def note(folder: Path, trouble: BaseException) -> None:
    """Write a failure down at the site; without a place to write to it is told on stderr alone."""
    text = "".join(traceback.format_exception(trouble))
    print(text, flush=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "trouble.log", "a", encoding="utf-8") as log:
            log.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')}\n{text}\n")
    except OSError as error:
        print(f"the site's log cannot be written: {error}", flush=True)
