"""A folder of Hugging Face's ``save_to_disk``: Arrow streams, one or more per split."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedfew.data.errors import DataError
from fedfew.data.readers.arrow_tables import split_order
from fedfew.data.readers.size_limit import check_size

if TYPE_CHECKING:
    import pyarrow as pa


def files(folder: Path) -> list[Path]:
    return split_order(list(folder.rglob("data-*-of-*.arrow")))


def read_table(path: Path) -> pa.Table:
    """The table of one file; batch by batch, since compressed ones may be larger than the file."""
    import pyarrow as pa

    batches: list[pa.RecordBatch] = []
    try:
        with pa.OSFile(str(path)) as source, pa.ipc.open_stream(source) as stream:
            for batch in stream:
                batches.append(batch)
                check_size(path, sum(batch.nbytes for batch in batches))
            return pa.Table.from_batches(batches, stream.schema)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as an Arrow stream of datasets' save_to_disk: {error}") from error
