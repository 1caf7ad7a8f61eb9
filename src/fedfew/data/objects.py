"""Data that is already in memory: data frames, torch and Hugging Face data sets, arrays, and one of these per client."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfew.data.decoded import Column
from fedfew.data.errors import DataError
from fedfew.data.finding import Found
from fedfew.data.raw import CLIENT, SPLITS, ColumnChoice, RawData, split_codes
from fedfew.data.readers.arrow_tables import TablePart, from_tables
from fedfew.data.readers.npz import as_chosen
from fedfew.data.torch_datasets import Samples, labels_of, samples_of

if TYPE_CHECKING:
    import pyarrow as pa

TAKEN = (
    "a name, a path, a pandas or polars data frame, a torch or Hugging Face data set, arrays (x, y), or a list or dict of these "
    "with one entry per client"
)


@dataclass(frozen=True)
class Leaf:
    """One object with the client and the split that it belongs to, if these are known."""

    value: Any
    client: str | None = None
    split: str | None = None


def find(data: Any, choice: ColumnChoice) -> Found:
    """The objects as a data set that can be read."""
    leaves = list(_leaves(data))
    if not leaves:
        raise DataError("the data is empty: no client has any samples")
    per_client = any(leaf.client is not None for leaf in leaves)
    if all(_is_table(leaf.value) or _is_frame_pair(leaf.value) for leaf in leaves):
        parts, choice = _parts(leaves, choice, per_client)
        raw = from_tables(parts, choice)
        key = _hash(batch.serialize() for part in parts for batch in part.table.to_batches())
        return Found("table", key, lambda: raw, cached=False, client=CLIENT if per_client else None)
    found = [_samples(leaf.value, choice) for leaf in leaves]
    raw = _merged(leaves, found, choice)
    key = _hash(_bytes(raw))
    return Found("arrays", key, lambda: raw, cached=False, client=CLIENT if per_client else None)


def _leaves(data: Any, client: str | None = None, split: str | None = None) -> Iterable[Leaf]:
    """The objects in lists (one entry per client) and dicts (by client, or by split if the keys are train, test, …)."""
    if _is_bunch(data):
        yield Leaf((data["data"], data["target"]), client, split)
    elif isinstance(data, Mapping):
        splits = [str(key) for key in data if str(key).lower() in SPLITS]
        by_split = len(splits) == len(data)
        if splits and not by_split:
            other = next(str(key) for key in data if str(key) not in splits)
            raise DataError(f"the keys of a dict are either clients or splits, not {splits[0]!r} beside {other!r}")
        order = sorted(data, key=lambda key: SPLITS.index(str(key).lower())) if by_split else list(data)
        for key in order:
            yield from _leaves(data[key], client if by_split else str(key), str(key).lower() if by_split else split)
    elif isinstance(data, list):
        for number, entry in enumerate(data):
            yield from _leaves(entry, str(number), split)
    else:
        yield Leaf(data, client, split)


def _is_bunch(data: Any) -> bool:
    """scikit-learn's ``load_iris()`` and the like."""
    return isinstance(data, Mapping) and "data" in data and "target" in data


def _is_table(value: Any) -> bool:
    """A data frame of pandas or polars, an Arrow table, or a split of a Hugging Face data set (its streams are read as items)."""
    module, kind = type(value).__module__.partition(".")[0], type(value).__name__
    return (module, kind) in {
        ("pandas", "DataFrame"),
        ("polars", "DataFrame"),
        ("polars", "LazyFrame"),
        ("pyarrow", "Table"),
        ("datasets", "Dataset"),
    }


def _is_frame_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and _is_table(value[0])


def arrow_table(value: Any, keep: Sequence[str] = ()) -> pa.Table:
    """A data frame, a split of a Hugging Face data set, an Arrow table or a dict of columns as an Arrow table.

    keep: columns that may be in the index of a pandas data frame, which is left out otherwise.
    """
    import pyarrow as pa

    if isinstance(value, pa.Table):
        return value
    if isinstance(value, Mapping):
        for name, column in value.items():
            if isinstance(column, str) or not hasattr(column, "__len__"):
                raise TypeError(f"{name!r} of a dict of columns is one value: give a list of values, one per row")
        return pa.table(dict(value))
    module = type(value).__module__.partition(".")[0]
    if module == "polars":
        return (value.collect() if hasattr(value, "collect") else value).to_arrow()
    if module == "datasets":
        from fedfew.data.hub import table_of

        return table_of(value)
    if module != "pandas" or not hasattr(value, "columns"):  # a Series has none
        raise TypeError(f"{type(value).__name__} is no table: give a data frame, an Arrow table or a dict of columns")
    kept = [name for name in value.index.names if name is not None and name in keep]
    frame = value.reset_index(kept) if kept else value
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, TypeError) as error:  # Arrow's message quotes a value
        mixed = next((str(name) for name in frame.columns if not _converts(frame[name])), "?")
        raise DataError(f"the column {mixed!r} of the data frame mixes types: give it one (astype)") from error


def _converts(column: Any) -> bool:
    import pyarrow as pa

    try:
        pa.Array.from_pandas(column)
    except (pa.ArrowException, TypeError):
        return False
    return True


def _parts(leaves: list[Leaf], choice: ColumnChoice, per_client: bool) -> tuple[list[TablePart], ColumnChoice]:
    import pyarrow as pa

    parts = []
    keep = (*(choice.label or ()), *choice.excluded, *((choice.input,) if isinstance(choice.input, str) else choice.input or ()))
    for leaf in leaves:
        pair = isinstance(leaf.value, tuple)
        table = arrow_table(leaf.value[0] if pair else leaf.value, keep)
        if pair:  # as in scikit-learn: features and labels apart
            table = table.append_column(_free_name("label", table), pa.array(labels_of(leaf.value[1])))
        if per_client:
            if CLIENT in table.column_names:
                raise DataError(
                    f"the tables are given one per client and have a column {CLIENT!r}: rename it, or concatenate the tables and "
                    f"give client={CLIENT!r}"
                )
            table = table.append_column(CLIENT, pa.array([leaf.client] * len(table), pa.string()))
        name = "the table" if leaf.client is None else f"client {leaf.client}"
        parts.append(TablePart(name if leaf.split is None else f"{name}, split {leaf.split}", table, split=leaf.split))
    if per_client:
        choice = replace(choice, excluded=(*choice.excluded, CLIENT))
    if isinstance(leaves[0].value, tuple):
        choice = replace(choice, label=(parts[0].table.column_names[-2 if per_client else -1],))
    return parts, choice


def _free_name(name: str, table: pa.Table) -> str:
    while name in table.column_names:
        name += "_"
    return name


def _samples(value: Any, choice: ColumnChoice) -> Samples:
    found = None if _is_table(value) else samples_of(value, choice)
    if found is None:
        raise TypeError(f"{type(value).__name__} cannot be loaded{' beside arrays' if _is_table(value) else ''}: {TAKEN} can")
    return found


def _merged(leaves: list[Leaf], found: list[Samples], choice: ColumnChoice) -> RawData:
    """All samples as one data set, with a column of clients if known. Whole numbers are features unless chosen otherwise."""
    first = found[0]
    for leaf, samples in zip(leaves, found, strict=True):
        where = "the data" if leaf.client is None else f"client {leaf.client}"
        if len(samples.x) != len(samples.y):
            raise DataError(f"{where} has {len(samples.x)} samples but {len(samples.y)} labels")
        if _kind(samples) != _kind(first):
            raise DataError(f"{where} has {_kind(samples)}, the first {_kind(first)}")
        if isinstance(samples.x, np.ndarray) and isinstance(first.x, np.ndarray) and samples.x.shape[1:] != first.x.shape[1:]:
            raise DataError(f"{where} has samples of shape {list(samples.x.shape[1:])}, the first {list(first.x.shape[1:])}")
    numbered = list(dict.fromkeys(samples.class_names for samples in found if samples.class_names))
    if len(numbered) > 1:
        raise DataError(f"the data sets number their classes differently ({numbered[0]} and {numbered[1]}): number them alike")
    clients = [leaf.client for leaf, samples in zip(leaves, found, strict=True) for _ in samples.y]
    common: dict[str, Any] = {
        "labels": [label for samples in found for label in samples.y],
        "where": lambda row: f"sample {row + 1}" if clients[row] is None else f"client {clients[row]}, sample {row + 1} of all",
        "label_names": next(iter(numbered), None),
        "columns": _columns(found) | ({CLIENT: Column.of(clients)} if leaves[0].client is not None else {}),
        "splits": split_codes([leaf.split for leaf, samples in zip(leaves, found, strict=True) for _ in samples.y]),
        "notes": tuple(dict.fromkeys(note for samples in found for note in samples.notes)),
    }
    if isinstance(first.x, np.ndarray):
        array = np.concatenate([np.asarray(samples.x) for samples in found])
        named = any(isinstance(leaf.value, tuple) for leaf in leaves)  # arrays have no columns, samples of a data set may have
        return RawData("array", array=as_chosen(array, choice if named else ColumnChoice(), "features"), **common)
    values = [x for samples in found for x in samples.x]
    if isinstance(values[0], str):
        return RawData("text", texts=values, **common)
    return RawData("image", image=lambda row: encoded_image(values[row]), **common)


def _columns(found: list[Samples]) -> dict[str, Column]:
    """Those that all have."""
    names = [name for name in found[0].columns if all(name in samples.columns for samples in found)]
    return {name: Column.of([value for samples in found for value in samples.columns[name]]) for name in names}


def _kind(samples: Samples) -> str:
    if isinstance(samples.x, np.ndarray):
        return "bytes (pixels)" if samples.x.dtype == np.uint8 else "numbers"
    return "texts" if isinstance(samples.x[0], str) else "images"


def encoded_image(image: Any) -> bytes:
    """An image of Pillow as an uncompressed file, which keeps every mode and value."""
    buffer = io.BytesIO()
    image.save(buffer, "TIFF")
    return buffer.getvalue()


def _bytes(raw: RawData) -> Iterable[bytes]:
    yield repr(raw.labels).encode()
    if raw.array is not None:
        yield np.ascontiguousarray(raw.array).tobytes()
    for row in range(len(raw)) if raw.array is None else ():
        yield raw.image(row) if raw.image is not None else str((raw.texts or [])[row]).encode()


def _hash(pieces: Iterable[Any]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()
