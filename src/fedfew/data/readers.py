"""Files of a data set, read but not decoded: parquet, CSV, ``.npz`` and folders of images."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedfew.data.errors import DataError
from fedfew.data.rows import MISSING, Column

if TYPE_CHECKING:
    import pyarrow as pa

LABEL_NAMES = ("label", "labels", "target", "class", "y", "fine_label", "character")
IMAGE_NAMES = ("image", "img", "file_name", "filename", "file", "path")
TEXT_NAMES = ("text", "sentence", "content")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
SPLITS = ("train", "val", "valid", "validation", "dev", "test")  # in this order they are merged


@dataclass(frozen=True)
class Columns:
    """Which columns to read, where the user or the table of sources says so."""

    input: str | tuple[str, ...] | None = None
    label: tuple[str, ...] | None = None  # the first of these that is there
    apart: tuple[str, ...] = ()  # never features: columns to deal or group by


@dataclass(frozen=True)
class Raw:
    """Rows as they lie in the files."""

    kind: Literal["image", "text", "array"]
    labels: list[Any]
    where: Callable[[int], str]  # names a row in messages
    image: Callable[[int], bytes] | None = None  # the file of image i; OSError or DataError where there is none
    texts: list[str | None] | None = None
    array: NDArray[Any] | None = None
    label_names: tuple[str, ...] | None = None  # what the integers in ``labels`` mean
    columns: dict[str, Column] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)


def inside(folder: Path, name: str) -> Path:
    """The file of that name in a folder; an error where the name leads out of it."""
    pure = PurePosixPath(name.replace("\\", "/"))
    path = folder / pure
    out = pure.is_absolute() or ".." in pure.parts or ":" in (pure.parts or ("",))[0]
    if out or not path.resolve().is_relative_to(folder.resolve()):
        raise DataError(f"the path {name!r} leads out of the folder {folder}")
    return path


def split_order(files: Sequence[Path]) -> list[Path]:
    """Training files first, then validation, then test, then others, each by name."""

    def rank(path: Path) -> tuple[int, str]:
        words = [path.stem.lower().replace("_", "-").split("-")[0], *(p.name.lower() for p in path.parents)]
        found = [SPLITS.index(word) for word in words if word in SPLITS]
        return (found[0] if found else len(SPLITS), str(path))

    return sorted(files, key=rank)


def read_parquet(files: Sequence[Path], columns: Columns) -> Raw:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = []
    for path in files:
        try:
            tables.append((path.name, path.parent, pq.read_table(path)))
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path} cannot be read as parquet: {error}") from error
    return from_tables(tables, columns)


def from_tables(tables: Sequence[tuple[str, Path | None, pa.Table]], columns: Columns) -> Raw:
    """Rows of Arrow tables in the layout of the hub, one (name, folder that paths are relative to, table) a file."""
    import pyarrow as pa
    import pyarrow.types as types

    first = tables[0][2]
    for name, _, table in tables[1:]:
        missing = set(first.column_names) - set(table.column_names)
        if missing:
            raise DataError(f"{name} has no column {sorted(missing)[0]!r}, but {tables[0][0]} has")
    features = hub_features(first)
    shared = [table.select(first.column_names).replace_schema_metadata(None) for _, _, table in tables]
    try:
        table = pa.concat_tables(shared, promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(f"the files {', '.join(name for name, _, _ in tables)} do not fit together: {error}") from error
    if len(table) == 0:
        raise DataError(f"{', '.join(name for name, _, _ in tables)} has no rows")
    starts = np.cumsum([0, *(len(t) for t in shared)]).tolist()

    def file_of(row: int) -> int:
        return bisect_right(starts, row) - 1

    def where(row: int) -> str:
        return f"{tables[file_of(row)][0]}, row {row - starts[file_of(row)] + 1}"

    label = _label_column(table.column_names, columns, tables[0][0])
    chosen = _input_columns(table, columns, label, tables[0][0])
    others = [n for n in table.column_names if n != label and n not in chosen and _is_plain(table.schema.field(n).type)]
    common: dict[str, Any] = {
        "labels": table[label].to_pylist(),
        "where": where,
        "label_names": features.get(label),
        "columns": {name: _column(table[name]) for name in others},
    }
    one = table.schema.field(chosen[0]).type if len(chosen) == 1 else None
    if one is not None and types.is_struct(one):
        payload, names = _field(table[chosen[0]], "bytes"), _field(table[chosen[0]], "path")

        def image(row: int) -> bytes:
            if payload is not None and payload[row] is not None:
                return payload[row]
            name = names[row] if names is not None else None
            return _image_file(tables[file_of(row)][1], name)

        return Raw("image", image=image, **common)
    if one is not None and (types.is_binary(one) or types.is_large_binary(one)):
        contents = table[chosen[0]].to_pylist()
        return Raw("image", image=lambda row: _there(contents[row]), **common)
    if one is not None and _is_text(one):
        values = table[chosen[0]].to_pylist()
        if chosen[0].lower() in IMAGE_NAMES:
            return Raw("image", image=lambda row: _image_file(tables[file_of(row)][1], values[row]), **common)
        return Raw("text", texts=values, **common)
    return Raw("array", array=_numbers(table, chosen, tables[0][0]), **common)


def read_csv(path: Path, columns: Columns) -> Raw:
    import pyarrow as pa
    import pyarrow.csv as csv

    try:
        table = csv.read_csv(
            path,
            parse_options=csv.ParseOptions(delimiter="\t" if path.suffix.lower() == ".tsv" else ",", newlines_in_values=True),
            convert_options=csv.ConvertOptions(strings_can_be_null=True, null_values=["", "NA", "NaN", "nan", "null", "None"]),
        )
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as CSV: {error}") from error
    return from_tables([(path.name, path.parent, table)], columns)


def read_npz(path: Path, columns: Columns) -> Raw:
    """Arrays ``x`` and ``y``, or ``x_train``, ``y_train``, ``x_test``, ``y_test``; further arrays of that length are columns."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} cannot be read as .npz of plain arrays: {error}") from error
    parts = [s for s in ("", "_train", "_val", "_test") if f"x{s}" in arrays and f"y{s}" in arrays]
    if not parts:
        raise DataError(f"{path} holds {sorted(arrays)}, but x and y (or x_train, y_train, x_test, y_test) are needed")
    pairs = [(arrays[f"x{s}"], arrays[f"y{s}"].reshape(-1)) for s in parts]
    for suffix, (x, y) in zip(parts, pairs, strict=True):
        if x.ndim == 0 or len(x) != len(y):
            raise DataError(f"{path}: x{suffix} is {list(x.shape)} but y{suffix} holds {len(y)} labels; one a sample is needed")
    try:
        x = np.concatenate([x for x, _ in pairs])
    except ValueError as error:
        raise DataError(f"{path}: the splits do not fit together: {error}") from error
    extra = {n: a for n, a in arrays.items() if n[0] not in "xy" and parts == [""] and a.shape == (len(x),)}
    return Raw(
        "array",
        labels=[label for _, y in pairs for label in y.tolist()],
        where=lambda row: f"{path.name}, row {row + 1}",
        array=_channels_first(x),
        columns={name: Column.of(array.tolist()) for name, array in extra.items()},
    )


def image_files(folder: Path) -> list[Path]:
    """The images of a folder with one subfolder a class, perhaps below folders named after splits."""
    found = []
    for base, below, files in os.walk(folder):
        below[:] = sorted(name for name in below if not name.startswith("."))
        here = Path(base)
        found += [here / name for name in sorted(files) if name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")]
    return found


def read_image_folder(folder: Path, files: Sequence[Path]) -> Raw:
    """A folder with one subfolder a class, perhaps below folders named after splits (train/cat/1.png)."""
    labels, splits = [], []
    for path in files:
        parts = path.relative_to(folder).parts[:-1]
        split = parts[0].lower() if len(parts) > 1 and parts[0].lower() in SPLITS else ""
        inner = parts[1:] if split else parts
        if not inner:
            raise DataError(f"{path} lies in no class folder: {folder}/<class>/{path.name} is expected")
        labels.append(inner[0])
        splits.append(split)

    def image(row: int) -> bytes:
        return inside(folder, str(files[row].relative_to(folder))).read_bytes()

    columns = {"split": Column.of(list(splits))} if any(splits) else {}
    return Raw("image", labels=labels, where=lambda row: str(files[row].relative_to(folder)), image=image, columns=columns)


def hub_features(table: pa.Table) -> dict[str, tuple[str, ...]]:
    """Class names by column, as the hub writes them into a file's metadata."""
    try:
        features = json.loads((table.schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        return {}
    return {name: tuple(map(str, f["names"])) for name, f in features.items() if isinstance(f, dict) and "names" in f}


def _label_column(there: list[str], columns: Columns, file: str) -> str:
    wanted = columns.label or LABEL_NAMES
    for name in wanted:
        if name in there:
            return name
    asked = f"no label column {columns.label[0]!r}" if columns.label else "no column that is plainly the label"
    raise DataError(f"{file} has {asked}; its columns are {', '.join(there)}: name one with label=…")


def _input_columns(table: pa.Table, columns: Columns, label: str, file: str) -> list[str]:
    import pyarrow.types as types

    there = table.column_names
    if columns.input is not None:
        wanted = [columns.input] if isinstance(columns.input, str) else list(columns.input)
        for name in wanted:
            if name not in there:
                raise DataError(f"{file} has no input column {name!r}; its columns are {', '.join(there)}")
        return wanted
    rest = [name for name in there if name != label and name not in columns.apart]
    kind = {name: table.schema.field(name).type for name in rest}
    pictures = [n for n in rest if types.is_struct(kind[n]) or types.is_binary(kind[n]) or types.is_large_binary(kind[n])]
    named = [n for known in (IMAGE_NAMES, TEXT_NAMES) for k in known for n in rest if n.lower() == k and _is_text(kind[n])]
    numeric = [n for n in rest if types.is_integer(kind[n]) or types.is_floating(kind[n]) or types.is_boolean(kind[n])]
    for candidates in (pictures[:1], named[:1], numeric):
        if candidates:
            return candidates
    raise DataError(f"{file} has no column that is plainly the input; its columns are {', '.join(there)}: name one with input=…")


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow.types as types

    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_plain(kind: pa.DataType) -> bool:
    import pyarrow.types as types

    return bool(_is_text(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _column(values: pa.ChunkedArray) -> Column:
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = pc.fill_null(values.cast(pa.string()), MISSING)
    coded = pc.dictionary_encode(texts).combine_chunks()
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.chunk(0) if coded.num_chunks else pa.array([], pa.string()).dictionary_encode()
    return Column(coded.indices.to_numpy(zero_copy_only=False).astype(np.int64), tuple(coded.dictionary.to_pylist()))


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
        raise DataError(f"the image is only a path, {name!r}, and there is no folder it could be relative to")
    return inside(folder, name).read_bytes()


def _numbers(table: pa.Table, chosen: list[str], file: str) -> NDArray[np.float32]:
    import pyarrow as pa

    features = []
    for name in chosen:
        try:
            features.append(table[name].cast(pa.float64()).to_numpy().astype(np.float32))
        except pa.ArrowException as error:
            raise DataError(f"{file}: the column {name!r} does not hold numbers ({error})") from error
    return np.stack(features, axis=1)


def _channels_first(x: NDArray[Any]) -> NDArray[Any]:
    if x.dtype == np.uint8 and x.ndim == 3:
        return x[:, None]
    if x.dtype == np.uint8 and x.ndim == 4 and x.shape[-1] in (1, 3) and x.shape[1] not in (1, 3):
        return np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    return x
