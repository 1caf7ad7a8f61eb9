"""Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedfew.data.errors import DataError
from fedfew.data.readers.size_limit import check_size

if TYPE_CHECKING:
    import pyarrow as pa


def read_table(path: Path) -> pa.Table:
    """The table of one file, once its metadata announce no more than may be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        about = pq.read_metadata(path)
        groups = [about.row_group(i).total_byte_size for i in range(about.num_row_groups)]
        row = sum(_width(field.type) for field in about.schema.to_arrow_schema())
        check_size(path, max(sum(groups), about.num_rows * row))  # equal values may be stored once for all rows
        return pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as parquet: {error}") from error


def _width(kind: pa.DataType) -> int:
    """Bytes that a value takes at least."""
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:  # a text or a list: the place where it begins
        return 4
