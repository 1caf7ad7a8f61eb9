"""A table in one file, by the file's ending."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fedfew.data.readers import csv_file, json_lines, parquet

if TYPE_CHECKING:
    import pyarrow as pa

TEXT_SUFFIXES = (".csv", ".tsv", *json_lines.SUFFIXES)


def read_table(path: Path, names: Callable[[str], bool]) -> tuple[pa.Table, tuple[str, ...]]:
    """The table, and what was assumed about the file. names: which columns name something, and hold words even if they look like
    numbers."""
    if path.suffix.lower() == ".parquet":
        return parquet.read_table(path), ()
    if path.suffix.lower() in json_lines.SUFFIXES:
        return json_lines.read_table(path), ()
    return csv_file.read_table(path, names)
