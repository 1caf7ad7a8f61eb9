"""One process at a time in a folder."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class HeldError(ValueError):
    """Somebody else holds the folder."""


@contextmanager
def held(folder: str | Path, patience: float = 30.0, who: str = "another server") -> Iterator[None]:
    """Hold a folder for as long as what is within runs; the lock goes with the process, however that ends.

    patience: seconds to wait for whoever holds it now; who: what to call them in the error.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    with open(place / ".lock", "w") as file:
        begin = time.monotonic()
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() - begin >= patience:
                    raise HeldError(f"{who} is at work in {place}: stop it, or choose another folder") from None
                time.sleep(0.5)
        yield
