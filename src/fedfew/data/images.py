"""Image files to bytes [C, H, W]."""

from __future__ import annotations

import io
import os
import struct
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from fedfew.data.decoded import Ints
from fedfew.data.errors import BadRows, DataError
from fedfew.data.progress import progress
from fedfew.data.raw import RawData

Size = tuple[int, int, int]  # channels, height, width
MOST_PIXELS = 50_000_000  # larger images are refused before they are decoded
_CHUNK = 256


def decode_images(raw: RawData, rows: Ints, size: Size | None, bad: BadRows, name: str) -> tuple[NDArray[np.uint8], Ints]:
    assert raw.image is not None
    fetch = raw.image
    given = size is not None
    for row in rows.tolist() if size is None else ():
        try:
            size = _own_size(fetch(row))
            break
        except UNREADABLE:
            continue  # it is reported below, in its turn
    if size is None:
        size = (3, 1, 1)  # no image can be read: each is reported below
    pixels = np.zeros((len(rows), *size), dtype=np.uint8)

    def work(begin: int) -> tuple[list[tuple[int, Exception]], int]:
        failed: list[tuple[int, Exception]] = []
        length = 0
        for i in range(begin, min(begin + _CHUNK, len(rows))):
            try:
                contents = fetch(int(rows[i]))
                length += len(contents)
                pixels[i] = decode_image(contents, size, resize=given)
            except UNREADABLE as error:
                failed.append((i, error))
        return failed, length

    failures: list[int] = []
    begins = list(range(0, len(rows), _CHUNK))
    with progress(f"decoding {name}", len(rows)) as advance, ThreadPoolExecutor(os.cpu_count() or 1) as pool:

        def note(done: tuple[list[tuple[int, Exception]], int]) -> None:
            for i, error in done[0]:
                bad.add(int(rows[i]), f"{raw.where(int(rows[i]))}: {_reason(error)}")
                failures.append(i)
            advance(_CHUNK)

        if begins:
            first = work(begins[0])
            note(first)
            # Small images spend their time in Python, where threads wait for each other; large ones in the decoder.
            large = first[1] / min(_CHUNK, len(rows)) > 8192
            for done in pool.map(work, begins[1:]) if large else map(work, begins[1:]):
                note(done)
    good = np.setdiff1d(np.arange(len(rows)), np.array(failures, dtype=np.int64))
    return (pixels, rows) if not failures else (pixels[good], rows[good])


def decode_image(contents: bytes, size: Size, *, resize: bool) -> NDArray[np.uint8]:
    """One image file as bytes [C, H, W]."""
    from PIL import Image

    channels, height, width = size
    with Image.open(io.BytesIO(contents)) as opened:
        _check_size(opened.size)
        image = opened.convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        if not resize:
            raise DataError(
                f"the image is {image.size[0]}×{image.size[1]} pixels, but the first is {width}×{height}: "
                "size=… brings all to one size"
            )
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    array = np.asarray(image)
    return array[None] if channels == 1 else array.transpose(2, 0, 1)


def _own_size(contents: bytes) -> Size:
    from PIL import Image

    with Image.open(io.BytesIO(contents)) as image:
        _check_size(image.size)
        image.load()
        grey = image.mode in ("1", "L", "LA", "I", "F") or image.mode.startswith("I;16")
        return (1 if grey else 3), image.size[1], image.size[0]


def _check_size(size: tuple[int, int]) -> None:
    if size[0] * size[1] > MOST_PIXELS:
        raise DataError(f"the image has {size[0]}×{size[1]} pixels, more than the {MOST_PIXELS:,} that are accepted")


# What Pillow and the file system raise for files that are not images. SyntaxError is Pillow's word for a broken PNG.
UNREADABLE = (OSError, ValueError, SyntaxError, EOFError, struct.error, IndexError, OverflowError, MemoryError, Warning)


def _reason(error: Exception) -> str:
    if isinstance(error, DataError):
        return str(error)
    if isinstance(error, FileNotFoundError):
        return f"there is no file {error.filename}"
    if type(error).__name__ == "UnidentifiedImageError":  # its own words name a place in memory
        return "the image cannot be decoded (it is no image file of a known kind)"
    return f"the image cannot be decoded ({type(error).__name__}: {str(error)[:120]})"
