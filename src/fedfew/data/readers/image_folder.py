"""Folders of images: ``<class>/1.png``, ``<client>/<class>/1.png``, ``<split>/<class>/1.png``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from fedfew.data.decoded import Column
from fedfew.data.errors import DataError
from fedfew.data.raw import CLIENT, SPLITS, ColumnChoice, RawData, split_codes

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")


def image_files(folder: Path) -> list[Path]:
    """All image files below a folder, hidden ones left out, in order of their names."""
    found = []
    for base, below, files in os.walk(folder):
        below[:] = sorted(name for name in below if not name.startswith("."))
        here = Path(base)
        found += [here / name for name in sorted(files) if name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")]
    return found


def read(folder: Path, files: Sequence[Path], choice: ColumnChoice) -> RawData:
    """Images whose class is a folder name: <class>/1.png, <client>/<class>/1.png, each also below folders named after splits.

    With two folders above the images, the outer ones are clients if any name of an inner one occurs in several of them;
    ``label`` "outer" or "inner" decides otherwise.
    """
    above = [_above(folder, path) for path in files]
    splits = [split for split, _ in above]
    parts = [names for _, names in above]
    by_client = _has_clients(parts, choice)
    labels = [names[1] if by_client else names[0] for names in parts]
    columns = {"split": Column.of([split or "" for split in splits])} if any(splits) else {}
    notes: tuple[str, ...] = ()
    if by_client:
        clients = [names[0] for names in parts]
        columns[CLIENT] = Column.of(list(clients))
        if choice.label is None:
            notes = (
                f"the {len(set(clients))} outer folders are clients, the {len(set(labels))} inner ones classes "
                '(label="outer" makes the outer ones classes)',
            )

    def image(row: int) -> bytes:
        return inside(folder, str(files[row].relative_to(folder))).read_bytes()

    return RawData(
        "image",
        labels=labels,
        where=lambda row: str(files[row].relative_to(folder)),
        image=image,
        columns=columns,
        splits=split_codes(splits),
        notes=notes,
    )


def _above(folder: Path, path: Path) -> tuple[str | None, tuple[str, ...]]:
    """The split of an image, and the names of the other folders above it."""
    names = path.relative_to(folder).parts[:-1]
    for place in range(min(2, len(names) - 1)):  # train/cat, train/Basel/cat, Basel/train/cat
        if names[place].lower() in SPLITS:
            return names[place].lower(), names[:place] + names[place + 1 :]
    if not names:
        raise DataError(f"{path} is in no class folder: {folder}/<class>/{path.name} is expected")
    return None, names


def _has_clients(parts: Sequence[tuple[str, ...]], choice: ColumnChoice) -> bool:
    depths = {len(names) for names in parts}
    if choice.label is not None:
        wanted = choice.label[0]
        if wanted not in ("outer", "inner"):
            raise DataError(f'label={wanted!r}: in a folder of images the label is a folder name: "outer" or "inner"')
        if wanted == "inner" and depths != {2}:
            raise DataError('label="inner" needs two folders above every image: <client>/<class>/1.png')
        return wanted == "inner"
    if depths != {2}:
        return False
    outer: dict[str, set[str]] = {}
    for client, label in parts:
        outer.setdefault(label, set()).add(client)
    return any(len(clients) > 1 for clients in outer.values())


def inside(folder: Path, name: str) -> Path:
    """The file of that name in a folder; an error if the name points outside the folder."""
    pure = PurePosixPath(name.replace("\\", "/"))
    path = folder / pure
    out = pure.is_absolute() or ".." in pure.parts or ":" in (pure.parts or ("",))[0]
    if out or not path.resolve().is_relative_to(folder.resolve()):
        raise DataError(f"the image path points outside the folder {folder}")
    return path
