"""Arrow tables: parquet files, CSV files and splits of hub data sets."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedfew.data.decoded import MISSING, Column
from fedfew.data.errors import DataError
from fedfew.data.raw import SPLITS, ColumnChoice, RawData
from fedfew.data.readers.image_folder import inside

if TYPE_CHECKING:
    import pyarrow as pa

LABEL_NAMES = ("label", "labels", "target", "class", "y", "fine_label", "character")
IMAGE_NAMES = ("image", "img", "file_name", "filename", "file", "path")
TEXT_NAMES = ("text", "sentence", "content")


def split_order(files: Sequence[Path]) -> list[Path]:
    """Training files first, then validation, then test, then others, each by name."""

    def rank(path: Path) -> tuple[int, str]:
        words = [path.stem.lower().replace("_", "-").split("-")[0], *(p.name.lower() for p in path.parents)]
        found = [SPLITS.index(word) for word in words if word in SPLITS]
        return (found[0] if found else len(SPLITS), str(path))

    return sorted(files, key=rank)


def read_parquet(files: Sequence[Path], choice: ColumnChoice) -> RawData:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = []
    for path in files:
        try:
            tables.append((path.name, path.parent, pq.read_table(path)))
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path} cannot be read as parquet: {error}") from error
    return from_tables(tables, choice)


def from_tables(tables: Sequence[tuple[str, Path | None, pa.Table]], choice: ColumnChoice) -> RawData:
    """Rows of Arrow tables in the layout of the hub: one (name, folder that image paths are relative to, table) per file."""
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

    label = _label_column(table.column_names, choice, tables[0][0])
    chosen = _input_columns(table, choice, label, tables[0][0])
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

        return RawData("image", image=image, **common)
    if one is not None and (types.is_binary(one) or types.is_large_binary(one)):
        contents = table[chosen[0]].to_pylist()
        return RawData("image", image=lambda row: _there(contents[row]), **common)
    if one is not None and _is_text(one):
        values = table[chosen[0]].to_pylist()
        if chosen[0].lower() in IMAGE_NAMES:
            return RawData("image", image=lambda row: _image_file(tables[file_of(row)][1], values[row]), **common)
        return RawData("text", texts=values, **common)
    return RawData("array", array=_numbers(table, chosen, tables[0][0]), **common)


def read_csv(path: Path, choice: ColumnChoice) -> RawData:
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
    return from_tables([(path.name, path.parent, table)], choice)


def hub_features(table: pa.Table) -> dict[str, tuple[str, ...]]:
    """Class names by column, as the hub writes them into a file's metadata."""
    try:
        features = json.loads((table.schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        return {}
    return {name: tuple(map(str, f["names"])) for name, f in features.items() if isinstance(f, dict) and "names" in f}


def _label_column(there: list[str], choice: ColumnChoice, file: str) -> str:
    wanted = choice.label or LABEL_NAMES
    for name in wanted:
        if name in there:
            return name
    asked = f"no label column {choice.label[0]!r}" if choice.label else "no column that is recognised as the label"
    raise DataError(f"{file} has {asked}; columns: {', '.join(there)}. Name one with label=…")


def _input_columns(table: pa.Table, choice: ColumnChoice, label: str, file: str) -> list[str]:
    import pyarrow.types as types

    there = table.column_names
    if choice.input is not None:
        wanted = [choice.input] if isinstance(choice.input, str) else list(choice.input)
        for name in wanted:
            if name not in there:
                raise DataError(f"{file} has no input column {name!r}; columns: {', '.join(there)}")
        return wanted
    rest = [name for name in there if name != label and name not in choice.excluded]
    kind = {name: table.schema.field(name).type for name in rest}
    pictures = [n for n in rest if types.is_struct(kind[n]) or types.is_binary(kind[n]) or types.is_large_binary(kind[n])]
    named = [n for known in (IMAGE_NAMES, TEXT_NAMES) for k in known for n in rest if n.lower() == k and _is_text(kind[n])]
    numeric = [n for n in rest if types.is_integer(kind[n]) or types.is_floating(kind[n]) or types.is_boolean(kind[n])]
    for candidates in (pictures[:1], named[:1], numeric):
        if candidates:
            return candidates
    raise DataError(f"{file} has no column that is recognised as the input; columns: {', '.join(there)}. Name one with input=…")


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
        raise DataError("the image is only a path, and there is no folder that it is relative to")
    return inside(folder, name).read_bytes()


def _numbers(table: pa.Table, chosen: list[str], file: str) -> NDArray[np.float32]:
    import pyarrow as pa

    features = []
    for name in chosen:
        try:
            features.append(table[name].cast(pa.float64()).to_numpy().astype(np.float32))
        except pa.ArrowException:  # its message quotes a value
            raise DataError(f"{file}: the column {name!r} does not hold numbers") from None
    return np.stack(features, axis=1)
