"""The idx files of the MNIST family, compressed or not: ``train-images-idx3-ubyte.gz`` beside ``train-labels-idx1-ubyte.gz``."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from fedfew.data.errors import DataError
from fedfew.data.raw import RawData, split_codes
from fedfew.data.readers.size_limit import check_size

_BYTES = 8  # the type code of unsigned bytes


def is_idx(path: Path) -> bool:
    """Whether a file name is one of the MNIST family."""
    name = path.name.lower()
    return "idx" in name and name.removesuffix(".gz").endswith("ubyte")


def image_files(folder: Path) -> list[Path]:
    """The files of images in a folder, training first."""
    found = [path for path in folder.iterdir() if is_idx(path) and "images" in path.name]
    return sorted(found, key=lambda path: (_split(path) != "train", path.name))


def labels_of(images: Path) -> Path:
    """The file of labels that belongs to a file of images, compressed or not."""
    name = images.name.replace("images", "labels").replace("idx3", "idx1")
    plain = name.removesuffix(".gz")
    for candidate in (name, plain, f"{plain}.gz"):
        if (images.parent / candidate).is_file():
            return images.parent / candidate
    raise DataError(f"{images}: there is no {name} beside it, which would hold its labels")


def read(files: Sequence[Path]) -> RawData:
    """All files of images with their labels."""
    arrays, labels, splits = [], [], []
    for path in files:
        images, numbers = read_array(path), read_array(labels_of(path))
        if images.ndim != 3 or numbers.shape != (len(images),):
            raise DataError(f"{path} holds an array of shape {list(images.shape)} and its labels one of {list(numbers.shape)}")
        arrays.append(images)
        labels += numbers.tolist()
        splits += [_split(path)] * len(images)
    if len({array.shape[1:] for array in arrays}) > 1:
        raise DataError(f"{', '.join(path.name for path in files)} hold images of different sizes")
    starts = np.cumsum([0, *(len(array) for array in arrays)])

    def where(row: int) -> str:
        file = int(np.searchsorted(starts, row, side="right")) - 1
        return f"{files[file].name}, image {row - starts[file] + 1}"

    return RawData("array", labels=labels, where=where, array=np.concatenate(arrays)[:, None], splits=split_codes(splits))


def read_array(path: Path) -> NDArray[np.uint8]:
    """The array of one file; never reads more than its header announces."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            return _parsed(file, path)
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise DataError(f"{path} cannot be read as idx file: {error}") from error


def _parsed(file: BinaryIO | gzip.GzipFile, path: Path) -> NDArray[np.uint8]:
    zero, kind, dimensions = struct.unpack(">HBB", file.read(4))
    if zero != 0 or kind != _BYTES or not 1 <= dimensions <= 3:
        raise DataError(f"{path} is no idx file of bytes")
    shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
    check_size(path, math.prod(shape))
    contents = file.read(math.prod(shape))
    if len(contents) != math.prod(shape):
        raise DataError(f"{path} announces {math.prod(shape):,} bytes but holds {len(contents):,}")
    return np.frombuffer(contents, np.uint8).reshape(shape)


def _split(path: Path) -> str | None:
    name = path.name.lower()
    return "test" if "t10k" in name or "test" in name else "train" if "train" in name else None
