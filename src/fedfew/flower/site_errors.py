"""Errors at a site: the full text goes to the site's own log, and only a category goes to the server."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedfew.flower import private_files

CATEGORIES = (  # all that the server ever learns
    "configuration",
    "data",
    "settings",
    "training",
    "state",
    "request",
    "weight",  # masked aggregation: this site's weight in the sum would be larger than it allows
    "revealed",  # masked aggregation: this site has revealed its shares of this round, and does so once only
)


class SiteError(Exception):
    """A failure at a site, by the part of its work that failed."""

    def __init__(self, category: str) -> None:
        assert category in CATEGORIES
        super().__init__(category)
        self.category = category


@contextmanager
def fails_as(category: str) -> Iterator[None]:
    """Give any error raised within this category; the original error is its cause."""
    try:
        yield
    except SiteError:
        raise
    except Exception as error:
        raise SiteError(category) from error


def append(folder: Path, error: BaseException) -> None:
    """Append an error's traceback to errors.log and print it to stdout, which Flower sends to the SuperNode's own log."""
    text = "".join(traceback.format_exception(error))
    print(text, flush=True)
    try:
        private_files.make_folder(folder)
        private_files.append(folder / "errors.log", f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')}\n{text}\n")
    except OSError as unwritable:
        print(f"{folder / 'errors.log'} cannot be written: {unwritable}", flush=True)
