"""Data that is already in memory: data frames, torch and Hugging Face data sets, arrays, and one of these per client."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedfew.data.decoded import Column
from fedfew.data.errors import DataError
from fedfew.data.finding import Found
from fedfew.data.raw import CLIENT, SPLITS, ColumnChoice, RawData, split_codes
from fedfew.data.readers.arrow_tables import IMAGE_NAMES, LABEL_NAMES, TEXT_NAMES, TablePart, from_tables
from fedfew.data.readers.npz import as_chosen, channels_first
from fedfew.federation import from_one_hot

if TYPE_CHECKING:
    import pyarrow as pa

INPUT_NAMES = (*IMAGE_NAMES, *TEXT_NAMES, "x", "input", "inputs", "pixel_values", "input_ids")
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


@dataclass(frozen=True)
class Samples:
    """Samples that are not in a table."""

    x: NDArray[Any] | list[Any]  # stacked, or texts, or images of Pillow
    y: list[Any]
    class_names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()


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
    found = [_samples(leaf, choice) for leaf in leaves]
    raw = _merged(leaves, found, choice)
    key = _hash(_bytes(raw))
    return Found("arrays", key, lambda: raw, cached=False, client=CLIENT if per_client else None)


def _leaves(data: Any, client: str | None = None, split: str | None = None) -> Iterable[Leaf]:
    """The objects in lists (one entry per client) and dicts (by client, or by split if the keys are train, test, …)."""
    if _is_bunch(data):
        yield Leaf((data["data"], data["target"]), client, split)
    elif isinstance(data, Mapping):
        by_split = all(str(key).lower() in SPLITS for key in data)
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
    module = type(value).__module__.partition(".")[0]
    return module in ("pandas", "polars", "pyarrow", "datasets") and hasattr(
        value, "shape" if module != "datasets" else "features"
    )


def _is_frame_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and _is_table(value[0]) and getattr(value[0], "ndim", 2) == 2


def arrow_table(value: Any, keep: Sequence[str] = ()) -> pa.Table:
    """A data frame, a split of a Hugging Face data set, an Arrow table or a dict of columns as an Arrow table.

    keep: columns that may be in the index of a pandas data frame, which is left out otherwise.
    """
    import pyarrow as pa

    if isinstance(value, pa.Table):
        return value
    if isinstance(value, Mapping):
        return pa.table(dict(value))
    module = type(value).__module__.partition(".")[0]
    if module == "polars":
        return (value.collect() if hasattr(value, "collect") else value).to_arrow()
    if module == "datasets":
        from fedfew.data.hub import table_of

        return table_of(value)
    if module != "pandas":
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
            table = table.append_column(_free_name("label", table), pa.array(_labels(leaf.value[1])))
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


def _samples(leaf: Leaf, choice: ColumnChoice) -> Samples:
    value = leaf.value
    if isinstance(value, tuple) and len(value) == 2:
        return Samples(channels_first(_array(value[0])), _labels(value[1]))
    if type(value).__name__ == "DataLoader" and hasattr(value, "dataset"):
        value = value.dataset
    if hasattr(value, "__getitem__") and hasattr(value, "__len__") and not isinstance(value, (str, np.ndarray)):
        return _from_dataset(value, (value[i] for i in range(len(value))), choice)
    if hasattr(value, "__iter__") and not isinstance(value, (str, np.ndarray)):
        return _from_dataset(value, iter(value), choice)
    raise TypeError(f"{type(value).__name__} cannot be loaded: {TAKEN} can")


def _from_dataset(dataset: Any, items: Iterable[Any], choice: ColumnChoice) -> Samples:
    """The samples of a torch data set: pairs (x, y), or dicts with an input and a label."""
    xs, ys = [], []
    for number, item in enumerate(items):
        if isinstance(item, Mapping):
            x, y = _named(item, choice.input, INPUT_NAMES, "input"), _named(item, choice.label, LABEL_NAMES, "label")
        elif isinstance(item, (tuple, list)) and len(item) >= 2:
            x, y = item[0], item[1]
        else:
            raise DataError(f"item {number} of the {type(dataset).__name__} is neither a pair (x, y) nor a dict")
        xs.append(x)
        ys.append(y)
    if not xs:
        raise DataError(f"the {type(dataset).__name__} is empty")
    notes: tuple[str, ...] = ()
    if _attribute(dataset, "transform") is not None:
        notes = ("every sample was read once: random transforms of the data set are not repeated in training (see augment)",)
    classes = _attribute(dataset, "classes")
    names = tuple(map(str, classes)) if isinstance(classes, (list, tuple)) else None
    if isinstance(xs[0], str) or hasattr(xs[0], "getbands"):
        return Samples(xs, _labels(ys), names, notes)
    arrays = [_array(x) for x in xs]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise DataError(f"the samples have different shapes, e.g. {' and '.join(str(list(s)) for s in sorted(shapes)[:2])}")
    return Samples(channels_first(np.stack(arrays)), _labels(ys), names, notes)


def _attribute(dataset: Any, name: str) -> Any:
    """An attribute of a data set, or of the one below a Subset."""
    found = getattr(dataset, name, None)
    return _attribute(dataset.dataset, name) if found is None and hasattr(dataset, "dataset") else found


def _named(item: Mapping[str, Any], chosen: Any, known: Sequence[str], purpose: str) -> Any:
    wanted = (chosen,) if isinstance(chosen, str) else chosen or known
    for name in wanted:
        if name in item:
            return item[name]
    raise DataError(f"the samples have no {purpose} among {', '.join(map(str, item))}: name one with {purpose}=…")


def _array(value: Any) -> NDArray[Any]:
    array = value.numpy(force=True) if hasattr(value, "numpy") and hasattr(value, "detach") else np.asarray(value)
    if array.dtype == object or array.dtype.kind in "UST":
        raise DataError("the samples are no numbers: give features as numbers, texts and categories in a table")
    return array.astype(np.float32) if array.dtype == bool else array


def _labels(labels: Any) -> list[Any]:
    """Labels as a list of Python values, one-hot rows as class numbers."""
    if isinstance(labels, list) and labels and hasattr(labels[0], "tolist"):
        labels = np.stack([_array(label) for label in labels])
    array = labels.numpy(force=True) if hasattr(labels, "detach") else np.asarray(labels)
    array = from_one_hot(array)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(f"labels of shape {list(array.shape)} cannot be used: one class or one-hot row per sample is needed")
    values: list[Any] = array.tolist()
    return values


def _merged(leaves: list[Leaf], found: list[Samples], choice: ColumnChoice) -> RawData:
    """All samples as one data set, with a column of clients if known. Whole numbers are features unless chosen otherwise."""
    first = found[0]
    for leaf, samples in zip(leaves, found, strict=True):
        where = "the data" if leaf.client is None else f"client {leaf.client}"
        if len(samples.x) != len(samples.y):
            raise DataError(f"{where} has {len(samples.x)} samples but {len(samples.y)} labels")
        if isinstance(samples.x, list) != isinstance(first.x, list):
            raise DataError(f"{where} has samples of another kind than the first")
        if isinstance(samples.x, np.ndarray) and isinstance(first.x, np.ndarray) and samples.x.shape[1:] != first.x.shape[1:]:
            raise DataError(f"{where} has samples of shape {list(samples.x.shape[1:])}, the first {list(first.x.shape[1:])}")
    clients = [leaf.client for leaf, samples in zip(leaves, found, strict=True) for _ in samples.y]
    common: dict[str, Any] = {
        "labels": [label for samples in found for label in samples.y],
        "where": lambda row: f"sample {row + 1}" if clients[row] is None else f"client {clients[row]}, sample {row + 1} of all",
        "label_names": first.class_names,
        "columns": {CLIENT: Column.of(clients)} if leaves[0].client is not None else {},
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
    return RawData("image", image=lambda row: _encoded(values[row]), **common)


def _encoded(image: Any) -> bytes:
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
