"""JSON lines: one object per row, whose keys are the columns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedfew.data.errors import DataError
from fedfew.data.readers.size_limit import check_size

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = (".jsonl", ".ndjson")


def read_table(path: Path) -> pa.Table:
    import pyarrow as pa
    import pyarrow.json as pj

    try:
        check_size(path, path.stat().st_size)
        return pj.read_json(path, parse_options=pj.ParseOptions(newlines_in_values=False))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except pa.ArrowException:  # its message quotes a value
        raise DataError(
            f"{path} cannot be read as JSON lines: every line must be an object with the same kinds of values"
        ) from None
