"""Cache of decoded data sets: in ``$FEDFEW_CACHE`` or ``~/.cache/fedfew``, never beside the data."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from fedfew.data import tensorfile
from fedfew.data.decoded import Column, DecodedData, Features, Words
from fedfew.data.errors import DataError

FORMAT = 5  # part of every key: increase it whenever decoding or the stored form changes


def folder() -> Path:
    """Where decoded data sets are stored."""
    return Path(os.environ.get("FEDFEW_CACHE") or Path.home() / ".cache" / "fedfew")


def source_key(files: Iterable[tuple[str, Path]], settings: dict[str, Any]) -> str:
    """A hash of the files (name, length, time of change) and of how they are read."""
    stats = [(name, path.stat()) for name, path in files]
    listed = [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]
    return hash_of({"format": FORMAT, "files": listed, "settings": settings})


def hash_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def get_or_make(key: str, name: str, make: Callable[[], DecodedData]) -> DecodedData:
    """The data stored under this key; otherwise what ``make`` returns, which is stored."""
    path = stored_at(key, name)
    found = stored(key, name)
    if found is not None:
        return found
    data = make()
    try:
        tensorfile.write(path, *_packed(data))
    except OSError as error:  # a full or read-only disk costs time, not the run
        warnings.warn(f"decoded data could not be stored in {path.parent}: {error}", stacklevel=2)
    return data


def stored(key: str, name: str) -> DecodedData | None:
    """The data stored under this key; None if there is none, or if the file is damaged."""
    path = stored_at(key, name)
    if not path.is_file():
        return None
    try:
        return _unpacked(*tensorfile.read(path))
    except (DataError, OSError, KeyError, ValueError) as error:
        warnings.warn(f"a damaged cache file is replaced: {error}", stacklevel=2)
        path.unlink(missing_ok=True)
        return None


def stored_at(key: str, name: str) -> Path:
    """The file for this key, whether it exists or not."""
    readable = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)[:40]
    return folder() / f"{readable}-{key[:20]}.rows"


def _packed(data: DecodedData) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    texts: dict[str, Any] = {"columns": {name: column.values for name, column in data.columns.items()}}
    arrays: dict[str, NDArray[Any]] = {"y": data.y, "row": data.row}
    if isinstance(data.x, Words):
        arrays |= {"words.ids": data.x.ids, "words.offsets": data.x.offsets}
        texts["inventory"] = data.x.inventory
    elif isinstance(data.x, Features):
        arrays |= {"numbers": data.x.numbers} | {f"category.{i}": c.codes for i, c in enumerate(data.x.categories)}
        texts["numbers"], texts["boolean"] = data.x.number_names, data.x.boolean
        texts["categories"] = [(name, c.values) for name, c in zip(data.x.category_names, data.x.categories, strict=True)]
    else:
        arrays["x"] = data.x
    if data.splits is not None:
        arrays["splits"] = data.splits
    arrays |= {f"column.{name}": column.codes for name, column in data.columns.items()}
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    about = {
        "class_names": data.class_names,
        "total": data.total,
        "source": data.source,
        "skipped": data.skipped,
        "notes": data.notes,
        "details": data.details,
    }
    return tensors | {"texts": tensorfile.text_tensor(texts)}, about


def _unpacked(tensors: dict[str, torch.Tensor], about: dict[str, Any]) -> DecodedData:
    texts = tensorfile.from_text_tensor(tensors["texts"])
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    return DecodedData(
        x=_unpacked_samples(arrays, texts),
        y=arrays["y"],
        class_names=tuple(about["class_names"]),
        columns={name: Column(arrays[f"column.{name}"], tuple(values)) for name, values in texts["columns"].items()},
        row=arrays["row"],
        total=about["total"],
        source=about["source"],
        skipped=tuple(about["skipped"]),
        notes=tuple(about["notes"]),
        splits=arrays.get("splits"),
        details=about["details"],
    )


def _unpacked_samples(arrays: dict[str, NDArray[Any]], texts: dict[str, Any]) -> NDArray[Any] | Words | Features:
    if "words.ids" in arrays:
        return Words(arrays["words.ids"], arrays["words.offsets"], tuple(texts["inventory"]))
    if "numbers" not in arrays:
        return arrays["x"]
    categories = tuple(Column(arrays[f"category.{i}"], tuple(values)) for i, (_, values) in enumerate(texts["categories"]))
    names = tuple(name for name, _ in texts["categories"])
    return Features(arrays["numbers"], tuple(texts["numbers"]), categories, names, tuple(texts["boolean"]))
