"""How large a file's contents may be in memory. Sizes are compared before anything is allocated."""

from __future__ import annotations

import os
from pathlib import Path

from fedfew.data.errors import DataError

VARIABLE = "FEDFEW_MAX_DATA_GIB"
DEFAULT = 8.0  # GiB per file


def check_size(path: Path, size: int) -> None:
    """Refuse a file whose contents take more bytes than the limit."""
    given = os.environ.get(VARIABLE, "")
    try:
        limit = float(given or DEFAULT)
    except ValueError:
        raise DataError(f"{VARIABLE} must be a number, not {given!r}") from None
    if not size <= limit * 2**30:
        raise DataError(
            f"{path} takes {size / 2**30:,.2f} GiB in memory, more than the {limit:g} GiB that are read from one file. If you "
            f"trust it, set {VARIABLE} to a larger number"
        )
