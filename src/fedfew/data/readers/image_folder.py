"""Folders of images: ``<class>/1.png`` or ``<split>/<class>/1.png``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from fedfew.data.decoded import Column
from fedfew.data.errors import DataError
from fedfew.data.raw import SPLITS, RawData, split_codes

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")


def image_files(folder: Path) -> list[Path]:
    """All image files below a folder, hidden ones left out, in order of their names."""
    found = []
    for base, below, files in os.walk(folder):
        below[:] = sorted(name for name in below if not name.startswith("."))
        here = Path(base)
        found += [here / name for name in sorted(files) if name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")]
    return found


def read(folder: Path, files: Sequence[Path]) -> RawData:
    """A folder with one subfolder per class, optionally below folders named after splits (train/cat/1.png)."""
    labels, splits = [], []
    for path in files:
        parts = path.relative_to(folder).parts[:-1]
        split = parts[0].lower() if len(parts) > 1 and parts[0].lower() in SPLITS else ""
        inner = parts[1:] if split else parts
        if not inner:
            raise DataError(f"{path} is in no class folder: {folder}/<class>/{path.name} is expected")
        labels.append(inner[0])
        splits.append(split)

    def image(row: int) -> bytes:
        return inside(folder, str(files[row].relative_to(folder))).read_bytes()

    return RawData(
        "image",
        labels=labels,
        where=lambda row: str(files[row].relative_to(folder)),
        image=image,
        columns={"split": Column.of(list(splits))} if any(splits) else {},
        splits=split_codes(splits),
    )


def inside(folder: Path, name: str) -> Path:
    """The file of that name in a folder; an error if the name points outside the folder."""
    pure = PurePosixPath(name.replace("\\", "/"))
    path = folder / pure
    out = pure.is_absolute() or ".." in pure.parts or ":" in (pure.parts or ("",))[0]
    if out or not path.resolve().is_relative_to(folder.resolve()):
        raise DataError(f"the image path points outside the folder {folder}")
    return path
