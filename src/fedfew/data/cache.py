"""Decoded data sets kept for next time: in ``$FEDFEW_CACHE`` or ``~/.cache/fedfew``, never beside the data."""

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
from fedfew.data.errors import DataError
from fedfew.data.rows import Column, Rows, Words

FORMAT = 1  # part of every key: raise it when what is stored, or how it is decoded, changes


def folder() -> Path:
    """Where decoded data sets are kept."""
    return Path(os.environ.get("FEDFEW_CACHE") or Path.home() / ".cache" / "fedfew")


def source_key(files: Iterable[tuple[str, Path]], settings: dict[str, Any]) -> str:
    """A hash of which files (name, length, time of change) are read how."""
    stats = [(name, path.stat()) for name, path in files]
    listed = [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]
    return hash_of({"format": FORMAT, "files": listed, "settings": settings})


def hash_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def remembered(key: str, name: str, make: Callable[[], Rows]) -> Rows:
    """What ``make`` returned when last asked under this key, or what it returns now."""
    path = stored_at(key, name)
    found = stored(key, name)
    if found is not None:
        return found
    rows = make()
    try:
        tensorfile.write(path, *_packed(rows))
    except OSError as error:  # a full or read-only disk costs time, not the run
        warnings.warn(f"decoded data could not be kept in {path.parent}: {error}", stacklevel=2)
    return rows


def stored(key: str, name: str) -> Rows | None:
    """What is kept under this key; None where nothing is, or nothing whole."""
    path = stored_at(key, name)
    if not path.is_file():
        return None
    try:
        return _unpacked(*tensorfile.read(path))
    except (DataError, OSError, KeyError, ValueError) as error:
        warnings.warn(f"a broken cache file is made anew: {error}", stacklevel=2)
        path.unlink(missing_ok=True)
        return None


def stored_at(key: str, name: str) -> Path:
    """The file that is, or would be, kept under this key."""
    readable = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)[:40]
    return folder() / f"{readable}-{key[:20]}.rows"


def _packed(rows: Rows) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    texts: dict[str, Any] = {"columns": {name: column.values for name, column in rows.columns.items()}}
    arrays: dict[str, NDArray[Any]] = {"y": rows.y, "row": rows.row}
    if isinstance(rows.x, Words):
        arrays |= {"words.ids": rows.x.ids, "words.offsets": rows.x.offsets}
        texts["inventory"] = rows.x.inventory
    else:
        arrays["x"] = rows.x
    arrays |= {f"column.{name}": column.codes for name, column in rows.columns.items()}
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    about = {
        "class_names": rows.class_names,
        "total": rows.total,
        "source": rows.source,
        "skipped": rows.skipped,
        "notes": rows.notes,
    }
    return tensors | {"texts": tensorfile.text_tensor(texts)}, about


def _unpacked(tensors: dict[str, torch.Tensor], about: dict[str, Any]) -> Rows:
    texts = tensorfile.from_text_tensor(tensors["texts"])
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    words = "words.ids" in arrays
    return Rows(
        x=Words(arrays["words.ids"], arrays["words.offsets"], tuple(texts["inventory"])) if words else arrays["x"],
        y=arrays["y"],
        class_names=tuple(about["class_names"]),
        columns={name: Column(arrays[f"column.{name}"], tuple(values)) for name, values in texts["columns"].items()},
        row=arrays["row"],
        total=about["total"],
        source=about["source"],
        skipped=tuple(about["skipped"]),
        notes=tuple(about["notes"]),
    )
