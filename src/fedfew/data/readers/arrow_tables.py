"""Arrow tables, into which form several readers bring their files: which columns are labels, images, texts or features."""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedfew.data.decoded import MISSING
from fedfew.data.errors import DataError
from fedfew.data.raw import SPLITS, ColumnChoice, RawData, split_codes
from fedfew.data.readers import table_columns
from fedfew.data.readers.image_columns import IMAGE_NAMES, holds_images, image_reader, is_text
from fedfew.data.readers.table_columns import FeatureColumns
from fedfew.util.spelling import unknown

if TYPE_CHECKING:
    import pyarrow as pa

LABEL_NAMES = ("label", "labels", "target", "class", "y", "fine_label", "character")
TEXT_NAMES = ("text", "sentence", "content")
SPLIT_COLUMN = "split"
LISTED = 3  # unknown splits in a note
_USE = {"the label": "the label", "the split": "the split", "client or group": "the column of clients or groups"}


@dataclass(frozen=True)
class TablePart:
    """One file or split of a data set."""

    name: str  # for messages
    table: pa.Table
    folder: Path | None = None  # image paths are relative to it
    split: str | None = None


def splits_of(files: Sequence[Path]) -> list[str | None]:
    """The split that each file belongs to, by its name (train-0.parquet) or by a folder above it that not all files share."""
    if len(files) < 2:
        return [None] * len(files)
    shared = len(Path(os.path.commonpath(files)).parts)
    words = [[p.stem.lower().replace("_", "-").split("-")[0], *map(str.lower, p.parts[shared:-1])] for p in files]
    return [next((word for word in of_file if word in SPLITS), None) for of_file in words]


def split_order(files: Sequence[Path]) -> list[Path]:
    """Training files first, then validation, then test, then others, each by name."""
    split = dict(zip(files, splits_of(files), strict=True))
    return sorted(files, key=lambda path: (SPLITS.index(split[path] or "") if split[path] else len(SPLITS), str(path)))


def from_files(files: Sequence[Path], read_table: Callable[[Path], pa.Table], choice: ColumnChoice) -> RawData:
    """The rows of all files; their names tell the splits."""
    named = zip(files, splits_of(files), strict=True)
    return from_tables([TablePart(path.name, read_table(path), path.parent, split) for path, split in named], choice)


def from_tables(parts: Sequence[TablePart], choice: ColumnChoice, notes: tuple[str, ...] = ()) -> RawData:
    """The rows of all parts: images, texts, or features."""
    table, file = _concatenated(parts), parts[0].name
    further = sorted({name for part in parts for name in part.table.column_names} - set(table.column_names))
    if further:
        notes += (f"columns left out, because {file} does not have them: {', '.join(further)}",)
    starts = np.cumsum([0, *(len(part.table) for part in parts)]).tolist()

    def part_of(row: int) -> TablePart:
        return parts[bisect_right(starts, row) - 1]

    def where(row: int) -> str:
        return f"{part_of(row).name}, row {row - starts[bisect_right(starts, row) - 1] + 1}"

    targets = _label_columns(table.column_names, choice, file)
    given_split, split_notes = _given_split(table, parts, choice, targets)
    purpose = {name: "client or group" for name in choice.excluded if name in table.column_names}
    purpose |= dict.fromkeys(targets, "the label")
    if given_split is not None and SPLIT_COLUMN in table.column_names:
        purpose[SPLIT_COLUMN] = "the split"
    _check_inputs(choice, purpose, file)
    single = _image_or_text_column(table, choice, targets, file)
    chosen = None if single else _feature_columns(table, choice, purpose, file)
    used = (single,) if single else chosen.used if chosen else ()
    left_out = (
        chosen.left_out if chosen else {n: purpose.get(n, f"the input is {single}") for n in table.column_names if n != single}
    )
    others = [
        n for n in table.column_names if n not in targets and n not in used and table_columns.is_plain(table.schema.field(n).type)
    ]
    common: dict[str, Any] = {
        "labels": _rows(table, targets),
        "target_names": targets,
        "where": where,
        "label_names": _class_names(parts, targets[0]) if targets else None,
        "columns": {name: table_columns.coded(table[name]) for name in others},
        "used": used,
        "left_out": left_out,
        "splits": given_split,
        "notes": notes + split_notes + (table_columns.doubtful(table, chosen) if chosen else ()),
    }
    if single is None:
        assert chosen is not None
        return RawData("table", features=table_columns.features(table, chosen), **common)
    image = image_reader(table[single], single, lambda row: part_of(row).folder)
    if image is None:
        return RawData("text", texts=table[single].to_pylist(), **common)
    files = tuple(filter(None, table[single].to_pylist())) if is_text(table[single].type) else ()
    return RawData("image", image=image, image_files=files, **common)


def _concatenated(parts: Sequence[TablePart]) -> pa.Table:
    import pyarrow as pa

    first = parts[0].table
    twice = [name for name in first.column_names if first.column_names.count(name) > 1]
    if twice:
        raise DataError(f"{parts[0].name} has more than one column {twice[0]!r}")
    for part in parts[1:]:
        missing = set(first.column_names) - set(part.table.column_names)
        if missing:
            raise DataError(f"{part.name} has no column {sorted(missing)[0]!r}, but {parts[0].name} has")
    tables = [table_columns.plain_types(part.table.select(first.column_names)).replace_schema_metadata(None) for part in parts]
    listed = ", ".join(part.name for part in parts)
    try:
        table = pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(f"the files {listed} do not fit together: {error}") from error
    if len(table) == 0:
        raise DataError(f"{listed} has no rows")
    return table.replace_schema_metadata(first.schema.metadata)


def _given_split(
    table: pa.Table, parts: Sequence[TablePart], choice: ColumnChoice, targets: Sequence[str]
) -> tuple[NDArray[np.int8] | None, tuple[str, ...]]:
    """The split per row, that of its file or the column ``split``, and a note where this column holds something else."""
    if (
        SPLIT_COLUMN in table.column_names
        and SPLIT_COLUMN not in (*choice.excluded, *targets)
        and is_text(table.schema.field(SPLIT_COLUMN).type)
    ):
        names = table[SPLIT_COLUMN].to_pylist()
        others = sorted({MISSING if name is None else name for name in names if (name or "").lower() not in SPLITS})
        if not others:
            return split_codes(names), ()
        holds = ", ".join(map(repr, others[:LISTED])) + (f" and {len(others) - LISTED} more" if len(others) > LISTED else "")
        note = f"the column {SPLIT_COLUMN} is one like any other, and does not split the data: it holds {holds}, known are "
        return None, (note + ", ".join(SPLITS),)
    return split_codes([part.split for part in parts for _ in range(len(part.table))]), ()


def _check_inputs(choice: ColumnChoice, purpose: dict[str, str], file: str) -> None:
    """No input is what is to be predicted, or what rows are divided by."""
    for name in [choice.input] if isinstance(choice.input, str) else choice.input or ():
        if name in purpose:
            raise DataError(f"{file}: the input column {name!r} is {_USE[purpose[name]]}: leave it out of input=…")


def _feature_columns(table: pa.Table, choice: ColumnChoice, purpose: dict[str, str], file: str) -> FeatureColumns:
    named = (choice.input,) if isinstance(choice.input, str) else choice.input
    chosen = table_columns.choose(table, named, purpose, file)
    if not chosen.used:
        why = "; ".join(f"{name}: {reason}" for name, reason in chosen.left_out.items())
        raise DataError(f"{file} has no column that is recognised as the input ({why}). Name one with input=…")
    return chosen


def hub_features(table: pa.Table) -> dict[str, tuple[str, ...]]:
    """Class names by column, as the hub writes them into a file's metadata."""
    try:
        features = json.loads((table.schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        return {}
    return {name: tuple(map(str, f["names"])) for name, f in features.items() if isinstance(f, dict) and "names" in f}


def _class_names(parts: Sequence[TablePart], label: str) -> tuple[str, ...] | None:
    named = {names: part.name for part in parts if (names := hub_features(part.table).get(label))}
    if len(named) > 1:
        raise DataError(
            f"{' and '.join(list(named.values())[:2])} have different class names for the numbers in {label!r}: give them the "
            "same, or labels in words"
        )
    return next(iter(named), None)


def _rows(table: pa.Table, targets: tuple[str, ...]) -> list[Any]:
    """The labels: one value per row, or with several columns a list of them; 0 without any."""
    import pyarrow.types as types

    if not targets:
        return [0] * len(table)
    for name in targets:
        if types.is_struct(kind := table.schema.field(name).type) or types.is_map(kind):
            raise DataError(f"the label column {name!r} holds {kind}: numbers or words are needed")
    columns = [table[name].to_pylist() for name in targets]
    return columns[0] if len(columns) == 1 else [list(row) for row in zip(*columns, strict=True)]


def _label_columns(there: list[str], choice: ColumnChoice, file: str) -> tuple[str, ...]:
    if choice.labels:
        missing = [name for name in choice.labels if name not in there]
        if missing:
            raise DataError(f"{file}: {unknown('label column', missing[0], there)}")
        return choice.labels
    wanted = choice.label or LABEL_NAMES
    for name in wanted:
        if name in there:
            return (name,)
    if choice.unlabelled and choice.label is None:
        return ()
    if choice.label:
        name = choice.label[0]
        hint = _several("label", name, there) or ". Name one with label=…"
        raise DataError(f"{file}: {unknown('label column', name, there)}{hint}")
    raise DataError(f"{file} has no column that is recognised as the label; columns: {', '.join(there)}. Name one with label=…")


def _several(setting: str, name: str, there: list[str]) -> str:
    """What to write instead of names joined by commas."""
    names = [word.strip() for word in name.split(",")]
    if len(names) < 2 or not set(names) <= set(there):
        return ""
    flags = " ".join(f"--{setting} {one}" for one in names)
    return f". Several are a list, {setting}={names}, or the flag several times: {flags}"


def _image_or_text_column(table: pa.Table, choice: ColumnChoice, targets: tuple[str, ...], file: str) -> str | None:
    """The column of images or texts; None if features are numbers and categories."""
    there = table.column_names
    if choice.input is not None:
        for name in [choice.input] if isinstance(choice.input, str) else choice.input:
            if name not in there:
                known = f"{', '.join(there)}{_several('input', name, there)}"
                raise DataError(f"{file} has no input column {name!r}; columns: {known}")
    if isinstance(choice.input, tuple):
        return None
    rest = [name for name in there if name not in targets and name not in choice.excluded]
    candidates = rest if choice.input is None else [choice.input]
    kind = {name: table.schema.field(name).type for name in candidates}
    pictures = [n for n in candidates if holds_images(kind[n])]
    named = [n for known in (IMAGE_NAMES, TEXT_NAMES) for k in known for n in candidates if n.lower() == k and is_text(kind[n])]
    if choice.input is not None and is_text(kind[choice.input]):
        named = [choice.input]
    return next(iter(pictures + named), None)
