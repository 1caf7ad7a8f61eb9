"""Small files in the very layouts that the hub and users have."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from fedfew.data import load
from fedfew.federation import Federation


def picture(value: int, size: tuple[int, int] = (28, 28), mode: str = "L", kind: str = "PNG") -> bytes:
    """One image file, all of whose pixels have a value."""
    buffer = io.BytesIO()
    colour: Any = value if mode == "L" else (value, 255 - value, 7)
    Image.new(mode, size, colour).save(buffer, kind)
    return buffer.getvalue()


def images(files: list[bytes | None], paths: list[str | None] | None = None) -> pa.Array:
    """A column as the hub stores images: bytes and path."""
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    names = paths or [None] * len(files)
    return pa.array([{"bytes": f, "path": p} for f, p in zip(files, names, strict=True)], kind)


def write(path: Path, columns: dict[str, Any], classes: dict[str, list[str]] | None = None) -> Path:
    """A parquet file with the hub's feature metadata."""
    features = {name: {"names": names, "_type": "ClassLabel"} for name, names in (classes or {}).items()}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})} if classes else None
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), path)
    return path


def labelled(
    folder: Path,
    file: str,
    number: int,
    classes: int,
    *,
    image: str = "image",
    label: str = "label",
    mode: str = "L",
    side: int = 28,
    **extra: Any,
) -> Path:
    """``number`` images whose grey value is their row number; labels in turn."""
    files = [picture(i % 251, (side, side), mode) for i in range(number)]
    columns = {image: images(files), label: pa.array([i % classes for i in range(number)], pa.int64()), **extra}
    return write(folder / file, columns, {label: [f"class {c}" for c in range(classes)]})


def image_folder(root: Path, classes: int = 3, each: int = 8, side: int = 16, below: str = "") -> Path:
    for c in range(classes):
        place = root / below / f"kind{c}"
        place.mkdir(parents=True, exist_ok=True)
        for i in range(each):
            (place / f"{i}.jpg").write_bytes(picture(40 * c + i, (side, side), "RGB", "JPEG"))
    return root


def pixels_of(federation: Any) -> np.ndarray[Any, Any]:
    """One value per sample (its first pixel), all splits, sorted: which samples there are."""
    parts = [s.x for s in (federation.train, federation.test, federation.val) if s is not None]
    return np.sort(np.concatenate([p.flatten(1)[:, 0].numpy() for p in parts]))


def everything(federation: Federation) -> int:
    """Number of samples in all splits."""
    return sum(int(s.count.sum()) for s in (federation.train, federation.test, federation.val) if s is not None)


def two(path: Path, **settings: object) -> Federation:
    """The data in two equal parts."""
    return load(path, clients=2, partition="iid", **settings)  # type: ignore[arg-type]
