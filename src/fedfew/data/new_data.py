"""New data for models that exist: rows of a table, an archive or a folder of images, with or without labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfew.data.decoded import value_text
from fedfew.data.errors import DataError
from fedfew.data.raw import CLIENT
from fedfew.data.readers import npz, table_columns, table_file
from fedfew.data.readers.image_folder import IMAGE_SUFFIXES, image_files, inside

TABLES = (*table_file.TEXT_SUFFIXES, ".parquet")
FILES = {
    "table": "a table (.csv, .tsv, .parquet or .jsonl)",
    "text": "a table (.csv, .tsv, .parquet or .jsonl) with a column of texts",
    "image": "a folder of images, an image, or a table of image files",
    None: "an .npz file with the array x",
}


@dataclass(frozen=True)
class NewData:
    """Rows as :meth:`fedfew.Run.predict` takes them."""

    x: Any
    names: tuple[str, ...]  # of the rows: their numbers from 1, or file names
    labels: NDArray[Any] | None = None
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)  # further ones, as text
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.names)


def read(path: Path, kind: str | None, inputs: Sequence[str] = (), label: str | Sequence[str] | None = None) -> NewData:
    """The rows in a file or folder.

    kind: of the preprocessing ("table", "text", "image"; None: arrays). inputs: the columns used in training. label: the column
    of labels, or the columns, where there are any; arrays have them in y, images in the name of the folder.
    """
    if not path.exists():
        raise DataError(f"there is no file or folder {path}")
    if path.suffix.lower() == ".npz":
        return _archive(path)
    if path.suffix.lower() in TABLES and kind is not None:
        return _table(path, kind, inputs, (label,) if isinstance(label, str) else tuple(label or ()))
    if kind == "image" and (path.is_dir() or path.suffix.lower() in IMAGE_SUFFIXES):
        return _images(path)
    raise DataError(
        f"{path} cannot be given to these models: {FILES[kind]} is needed, or an .npz file with samples as in training"
    )


def _archive(path: Path) -> NewData:
    arrays = npz.load(path)
    if "x" not in arrays or arrays["x"].ndim == 0:
        raise DataError(f"{path} holds {sorted(arrays)}, but the array x is needed")
    x = npz.channels_first(arrays.pop("x"))
    y = arrays.pop("y", None)
    labels = y.reshape(-1) if y is not None and y.ndim == 2 and y.shape[1] == 1 else y
    if labels is not None and (labels.ndim not in (1, 2) or len(labels) != len(x)):
        raise DataError(f"{path}: x has {len(x)} rows and y the shape {list(labels.shape)}; one label per sample is needed")
    columns = {name: [value_text(v) for v in values.tolist()] for name, values in arrays.items() if values.shape == (len(x),)}
    if "groups" in arrays and "groups" not in columns:
        raise DataError(f"{path}: groups must have one value per sample, {len(x)} in all")
    return NewData(x, _numbers(len(x)), labels, columns)


def _table(path: Path, kind: str, inputs: Sequence[str], of_labels: Sequence[str]) -> NewData:
    table, notes = table_file.read_table(path, lambda name: name not in (*inputs, *of_labels))
    labels = _labels(table, of_labels, path)
    others = [name for name in table.column_names if name not in inputs]
    plain = table_columns.plain_types(table.select(others))
    columns = {name: table_columns.column_texts(plain[name]) for name in others if table_columns.is_plain(plain[name].type)}
    x: Any = table
    if kind != "table":
        if not inputs:
            instead = "give an image or a folder of images" if kind == "image" else "give a list of texts in Python"
            raise DataError(f"{path.name} is a table, but the {kind}s of the training were in no column of one: {instead}")
        column = inputs[0]
        if column not in table.column_names:
            raise DataError(f"{path.name} has no column {column!r}, which held the {kind}s in training")
        values = table[column].to_pylist()
        if any(not isinstance(value, str) for value in values):
            raise DataError(f"{path.name}, row {[isinstance(v, str) for v in values].index(False) + 1}: the {kind} is missing")
        x = values if kind == "text" else [inside(path.parent, value) for value in values]
    return NewData(x, _numbers(len(table)), labels, columns, notes)


def _labels(table: Any, columns: Sequence[str], path: Path) -> NDArray[Any] | None:
    """[N] of one column, [N, d] of several; None where one of them is not there."""
    if not columns or not set(columns) <= set(table.column_names):
        return None
    values = [table[name].to_pylist() for name in columns]
    for row, labels in enumerate(zip(*values, strict=True), 1):
        if None in labels:
            raise DataError(f"{path.name}, row {row}: the label is missing")
    return np.array(values[0] if len(columns) == 1 else list(zip(*values, strict=True)), dtype=object)


def _images(path: Path) -> NewData:
    """The folder right above an image is its class, the outermost one its client, where these are names that are known."""
    files = image_files(path) if path.is_dir() else [path]
    if not files:
        raise DataError(f"there are no images in {path}")
    names = tuple(str(file.relative_to(path)) if path.is_dir() else file.name for file in files)
    folders = [Path(name).parts[:-1] for name in names]
    columns = {CLIENT: [parts[0] for parts in folders]} if all(folders) else {}
    labels = np.array([parts[-1] for parts in folders]) if all(folders) else None
    return NewData(files, names, labels, columns)


def _numbers(rows: int) -> tuple[str, ...]:
    return tuple(str(row + 1) for row in range(rows))
