"""NumPy archives: the one reader that ``data.load``, ``fedfew select`` and Flower sites share."""

from __future__ import annotations

import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedfew.data.decoded import Column
from fedfew.data.errors import DataError
from fedfew.data.labels import class_numbers
from fedfew.data.raw import ColumnChoice, RawData, split_codes
from fedfew.data.readers.size_limit import check_size
from fedfew.targets import from_one_hot

NEEDED = "x and y (or x_train, y_train, x_test, y_test) are needed"


@dataclass(frozen=True)
class Arrays:
    """The contents of one archive. Images have their channels first, one-hot labels are class numbers."""

    path: Path
    splits: dict[str, tuple[NDArray[Any], NDArray[Any]]]  # (x, y) of "all", or of "train", "val", "test"
    columns: dict[str, NDArray[Any]]  # further arrays with one value per row of "all"
    class_names: tuple[str, ...] | None  # the array ``class_names``, if there is one
    unused: tuple[str, ...] = ()  # arrays that are none of these

    def numbered(self, class_names: tuple[str, ...] | None = None) -> dict[str, tuple[NDArray[Any], NDArray[np.int64]]]:
        """(x, y) per split with labels as class numbers; labels that are words are looked up in the class names."""
        names = self.class_names or class_names
        return {split: (x, class_numbers(y, names, self.path.name)) for split, (x, y) in self.splits.items()}


def load(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an archive, once their headers announce no more than may be read. Nothing is unpickled."""
    try:
        with zipfile.ZipFile(path) as archive:  # a single array (.npy) is none
            check_size(path, sum(_announced(archive, member) for member in archive.infolist()))
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
            return {name: np.char.decode(a, "utf-8") if a.dtype.kind == "S" else a for name, a in arrays.items()}
    except DataError:
        raise
    except Exception as error:  # numpy's header is a Python literal: parsing one may raise nearly anything, also RecursionError
        if "allow_pickle" in str(error):  # advises what is not done here
            raise DataError(
                f"{path} holds Python objects where plain arrays are needed: reading them could run code. Store arrays, "
                "np.savez(path, x=…, y=…); files of PFLlib are read as docs/data.md says"
            ) from error
        raise DataError(f"{path} cannot be read as .npz of plain arrays: {error}") from error


def _announced(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> int:
    """Bytes of the array in a member of an archive, by its header; of anything else, of the member."""
    with archive.open(member) as file:
        if file.read(len(np.lib.format.MAGIC_PREFIX)) != np.lib.format.MAGIC_PREFIX:
            return member.file_size
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(file)
    return max(member.file_size, math.prod(shape) * dtype.itemsize)


def read_arrays(path: Path) -> Arrays:
    """The arrays ``x`` and ``y``, or ``x_train``, ``y_train``, ``x_test``, ``y_test`` (and ``_val``). Nothing is unpickled."""
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    arrays = load(path)
    suffixes = {"all": "", "train": "_train", "val": "_val", "test": "_test"}
    present = {split: s for split, s in suffixes.items() if f"x{s}" in arrays and f"y{s}" in arrays}
    if not present:
        raise DataError(f"{path} holds {sorted(arrays)}, but {NEEDED}")
    splits = {}
    for split, suffix in present.items():
        x, y = arrays[f"x{suffix}"], arrays[f"y{suffix}"]
        y = y.reshape(-1) if y.ndim == 2 and y.shape[1] == 1 else y
        if x.ndim and len(x) == len(y) == 0:
            raise DataError(f"{path}: x{suffix} and y{suffix} have no rows; at least one sample is needed")
        if x.ndim == 0 or y.ndim not in (1, 2) or len(y) != len(x):
            raise DataError(
                f"{path}: x{suffix} has shape {list(x.shape)} and y{suffix} {list(y.shape)}; one label per sample is needed, or "
                "one row of labels"
            )
        splits[split] = (channels_first(x), y)
    if all(from_one_hot(y).ndim == 1 for _, y in splits.values()):
        splits = {split: (x, from_one_hot(y)) for split, (x, y) in splits.items()}
    names = arrays.get("class_names")
    rows = len(splits["all"][1]) if "all" in splits else None
    used = {f"{axis}{suffix}" for axis in "xy" for suffix in present.values()} | {"class_names"}
    columns = {name: array for name, array in arrays.items() if name not in used and array.shape == (rows,)}
    unused = tuple(sorted(arrays.keys() - used - columns.keys()))
    return Arrays(path, splits, columns, None if names is None else _class_names(path, names), unused)


def _class_names(path: Path, names: NDArray[Any]) -> tuple[str, ...]:
    """Of an array of words or numbers; 3.0 is 3, as it is among labels."""
    values = names.tolist()
    if any(value is None or value != value for value in values):
        raise DataError(f"{path}: class_names has a gap (NaN); it needs a name for each class")
    return tuple(str(int(value)) if isinstance(value, float) and value.is_integer() else str(value) for value in values)


def read(path: Path, choice: ColumnChoice) -> RawData:
    """All splits concatenated; further arrays of that length are columns. Whole numbers are token ids unless chosen otherwise."""
    found = read_arrays(path)
    if len({x.dtype == np.uint8 for x, _ in found.splits.values()}) > 1:
        raise DataError(f"{path}: the samples of one split are bytes (pixels), those of another are not")
    try:
        x = np.concatenate([x for x, _ in found.splits.values()])
    except ValueError as error:
        raise DataError(f"{path}: the splits do not fit together: {error}") from error
    labels = [label for _, y in found.splits.values() for label in y.tolist()]
    if found.class_names is not None:
        labels = [label for _, y in found.numbered().values() for label in y.tolist()]
    notes = [f"{path.name}: arrays not used: {', '.join(found.unused)}"] if found.unused else []
    if choice.input is None and x.dtype.kind in "iu" and x.dtype != np.uint8:
        notes.append(f'{path.name}: whole numbers are read as token ids (input="features" reads them as features)')
    return RawData(
        "array",
        labels=labels,
        where=lambda row: f"{path.name}, row {row + 1}",
        array=as_chosen(x, choice, "tokens"),
        label_names=found.class_names,
        splits=split_codes([split for split, (_, y) in found.splits.items() for _ in y]),
        columns={name: Column.of(array.tolist()) for name, array in found.columns.items()},
        notes=tuple(notes),
    )


def as_chosen(x: NDArray[Any], choice: ColumnChoice, default: Literal["features", "tokens"]) -> NDArray[Any]:
    """Whole numbers (not bytes) as float32 if they are features, unchanged if they are token ids."""
    if (choice.labels or choice.label) != ("y",):
        choice.refuse("the labels of arrays are y, and there are", input=False)
    wanted = choice.input or default
    if wanted not in ("features", "tokens"):
        raise DataError(f'input={wanted!r}: arrays have no columns; "features" or "tokens" determines how whole numbers are read')
    return x.astype(np.float32) if wanted == "features" and x.dtype.kind in "iu" and x.dtype != np.uint8 else x


def channels_first(x: NDArray[Any]) -> NDArray[Any]:
    """Bytes [N, H, W] or [N, H, W, C] as [N, C, H, W]; anything else unchanged."""
    if x.dtype == np.uint8 and x.ndim == 3:
        return x[:, None]
    if x.dtype == np.uint8 and x.ndim == 4 and x.shape[-1] in (1, 3) and x.shape[1] not in (1, 3):
        return np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    return x
