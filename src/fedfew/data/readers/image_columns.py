"""Columns of images in Arrow tables: encoded in the table, or names of files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfew.data.errors import DataError
from fedfew.data.readers.image_folder import inside

if TYPE_CHECKING:
    import pyarrow as pa

IMAGE_NAMES = ("image", "img", "file_name", "filename", "file", "path")


def image_reader(column: pa.ChunkedArray, name: str, folder: Callable[[int], Path | None]) -> Callable[[int], bytes] | None:
    """The encoded image of a row: from its bytes, or from the file that it names; None for a column of texts."""
    import pyarrow.types as types

    if types.is_struct(column.type):
        payload, names = _field(column, "bytes"), _field(column, "path")

        def image(row: int) -> bytes:
            if payload is not None and payload[row] is not None:
                return payload[row]
            return _image_file(folder(row), names[row] if names is not None else None)

        return image
    if is_text(column.type) and name.lower() not in IMAGE_NAMES:
        return None
    values = column.to_pylist()
    if is_text(column.type):
        return lambda row: _image_file(folder(row), values[row])
    return lambda row: _there(values[row])


def holds_images(kind: pa.DataType) -> bool:
    """Bytes, or the hub's pair of bytes and path; other nested columns are no images."""
    import pyarrow.types as types

    if types.is_struct(kind):
        return any(kind.field(i).name in ("bytes", "path") for i in range(kind.num_fields))
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _field(values: pa.ChunkedArray, name: str) -> list[Any] | None:
    import pyarrow.compute as pc

    known = {values.type.field(i).name for i in range(values.type.num_fields)}
    return pc.struct_field(values, name).to_pylist() if name in known else None


def _there(contents: bytes | None) -> bytes:
    if contents is None:
        raise DataError("the image is missing")
    return contents


def _image_file(folder: Path | None, name: str | None) -> bytes:
    if not name:
        raise DataError("the image is missing")
    if folder is None:
        raise DataError("the image is only a path, and there is no folder that it is relative to")
    return inside(folder, name).read_bytes()


def is_text(kind: pa.DataType) -> bool:
    import pyarrow.types as types

    return bool(types.is_string(kind))
