"""Samples that are not in a table: arrays, and the items of torch data sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfew.data.errors import DataError
from fedfew.data.raw import ColumnChoice
from fedfew.data.readers.arrow_tables import LABEL_NAMES, TEXT_NAMES
from fedfew.data.readers.image_columns import IMAGE_NAMES
from fedfew.data.readers.npz import channels_first

NOT_PLAIN = object()  # in the place of an image, a list, …
INPUT_NAMES = (*IMAGE_NAMES, *TEXT_NAMES, "x", "input", "inputs", "pixel_values", "input_ids")


@dataclass(frozen=True)
class Samples:
    """Samples that are not in a table."""

    x: NDArray[Any] | list[Any]  # stacked, or texts, or images of Pillow
    y: list[Any]
    class_names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    columns: dict[str, list[Any]] = field(default_factory=dict)  # what else is known of each, as whose it is


def samples_of(value: Any, choice: ColumnChoice) -> Samples | None:
    """The samples of a pair of arrays, a data set or a data loader; None for anything else."""
    if isinstance(value, tuple) and len(value) == 2:
        if isinstance(value[0], (list, tuple)) and value[0] and all(isinstance(x, str) for x in value[0]):
            return Samples(list(value[0]), labels_of(value[1]))
        return Samples(channels_first(_array(value[0])), labels_of(value[1]))
    if type(value).__name__ == "DataLoader" and hasattr(value, "dataset"):
        value = value.dataset
    if isinstance(value, (str, np.ndarray)) or type(value).__module__.partition(".")[0] in ("pandas", "polars"):
        return None
    if hasattr(value, "__getitem__") and hasattr(value, "__len__"):
        return _from_dataset(value, (value[i] for i in range(len(value))), choice)
    return _from_dataset(value, iter(value), choice) if hasattr(value, "__iter__") else None


def _from_dataset(dataset: Any, items: Iterable[Any], choice: ColumnChoice) -> Samples:
    """The samples of a torch data set: pairs (x, y), or dicts with an input and a label."""
    xs, ys, others = [], [], list[Mapping[str, Any]]()
    for number, item in enumerate(items):
        if isinstance(item, Mapping):
            names = _named(item, choice.input, INPUT_NAMES, "input"), _named(item, choice.label, LABEL_NAMES, "label")
            x, y = (item[name] for name in names)
            others.append({name: _plain(value) for name, value in item.items() if name not in names})
        elif isinstance(item, (tuple, list)) and len(item) >= 2:
            x, y = item[0], item[1]
        else:
            several = ": give a list of data sets, one per client" if hasattr(item, "__getitem__") else ""
            raise DataError(f"item {number} of the {type(dataset).__name__} is neither a pair (x, y) nor a dict{several}")
        xs.append(x)
        ys.append(y)
    if not xs:
        raise DataError(f"the {type(dataset).__name__} is empty")
    notes: tuple[str, ...] = ()
    if _attribute(dataset, "transform") is not None:
        notes = ("every sample was read once: random transforms of the data set are not repeated in training (see augment)",)
    classes = _attribute(dataset, "classes")
    class_names = tuple(map(str, classes)) if isinstance(classes, (list, tuple)) else None
    found = Samples(xs, labels_of(ys), class_names, notes, _columns(others) if len(others) == len(xs) else {})
    if isinstance(xs[0], str) or hasattr(xs[0], "getbands"):
        return found
    arrays = [_array(x) for x in xs]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise DataError(f"the samples have different shapes, e.g. {' and '.join(str(list(s)) for s in sorted(shapes)[:2])}")
    return replace(found, x=channels_first(np.stack(arrays)))


def _columns(items: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The further values of dicts by their names, of those that are words or numbers in all of them."""
    names = dict.fromkeys(name for item in items for name in item)
    columns = {name: [item.get(name) for item in items] for name in names}
    return {name: values for name, values in columns.items() if NOT_PLAIN not in values}


def _plain(value: Any) -> Any:
    """A word or number, also of a tensor that holds one."""
    single = getattr(value, "ndim", None) == 0 and hasattr(value, "item")
    found = value.item() if single else value
    return found if found is None or isinstance(found, str | int | float) else NOT_PLAIN


def _attribute(dataset: Any, name: str) -> Any:
    """An attribute of a data set, or of the one below a Subset."""
    found = getattr(dataset, name, None)
    return _attribute(dataset.dataset, name) if found is None and hasattr(dataset, "dataset") else found


def _named(item: Mapping[str, Any], chosen: Any, known: Sequence[str], purpose: str) -> str:
    wanted: Sequence[str] = (chosen,) if isinstance(chosen, str) else chosen or known
    for name in wanted:
        if name in item:
            return name
    raise DataError(f"the samples have no {purpose} among {', '.join(map(str, item))}: name one with {purpose}=…")


def _array(value: Any) -> NDArray[Any]:
    array = value.numpy(force=True) if hasattr(value, "numpy") and hasattr(value, "detach") else np.asarray(value)
    if array.dtype == object or array.dtype.kind in "UST":
        raise DataError("the samples are no numbers: give features as numbers, texts and categories in a table")
    return array


def labels_of(labels: Any) -> list[Any]:
    """Labels as a list of Python values; rows of several values (one-hot or not) as lists."""
    if isinstance(labels, (list, tuple)):  # as objects: in an array of words a missing value (NaN) would be the word "nan"
        array = np.array([label.tolist() if hasattr(label, "tolist") else label for label in labels], dtype=object)
    elif type(labels).__module__.partition(".")[0] == "pandas":
        array = labels.to_numpy(dtype=object, na_value=None)
    else:
        array = labels.numpy(force=True) if hasattr(labels, "detach") else np.asarray(labels)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim not in (1, 2):
        raise DataError(
            f"labels of shape {list(array.shape)} cannot be used: one label or one row of labels per sample is needed"
        )
    values: list[Any] = array.tolist()
    return values
