"""From rows as they lie in files to arrays: images decoded, texts cut into words, labels numbered."""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfew.data import text
from fedfew.data.errors import BadRows, DataError, OnBad
from fedfew.data.progress import progress
from fedfew.data.readers import Raw
from fedfew.data.rows import Ints, Rows, Words

Size = tuple[int, int, int]  # channels, height, width
MOST_PIXELS = 50_000_000  # larger pictures are refused before they are unpacked
_CHUNK = 256


def decode(
    raw: Raw,
    source: str,
    *,
    size: Size | None = None,
    classes: int | None = None,
    on_bad: OnBad = "raise",
    only: Ints | None = None,
    name: str = "rows",
) -> Rows:
    """All rows, or ``only`` those of the given numbers, as arrays.

    size: what images are brought to; unless given all must have the size of the first.
    classes: how many there are, where labels are already numbered from 0 but the files do not say what they mean.
    """
    if len(raw) == 0:
        raise DataError(f"{name} has no rows")
    bad = BadRows(on_bad)
    y, class_names = number_labels(raw, classes, bad)
    wanted = np.arange(len(raw)) if only is None else np.sort(only)
    rows = np.array([row for row in wanted.tolist() if row not in bad.found], dtype=np.int64)
    notes: tuple[str, ...] = raw.notes
    x: NDArray[Any] | Words
    if raw.kind == "image":
        x, rows = _images(raw, rows, size, bad, name)
    elif raw.kind == "text":
        x, rows, long = _texts(raw, rows, bad)
        if long:
            notes += (f"{long} texts were cut at {text.LONGEST:,} characters",)
    else:
        x, rows = _array(raw, rows, bad)
    if len(rows) == 0:
        raise DataError(f"no row of {name} can be used: {'; '.join(bad.messages[:3])}")
    return Rows(x, y[rows], class_names, _columns(raw, rows), rows, len(raw), source, bad.messages, notes)


def number_labels(raw: Raw, classes: int | None, bad: BadRows) -> tuple[Ints, tuple[str, ...]]:
    """Labels as 0 … C−1 (−1 in bad rows), and what they mean."""
    labels = raw.labels
    missing = [row for row, label in enumerate(labels) if _is_missing(label, raw.label_names is not None or classes is not None)]
    for row in missing:
        bad.add(row, f"{raw.where(row)}: the label is missing")
    names = raw.label_names or (tuple(map(str, range(classes))) if classes and _whole(labels) else None)
    gone = set(missing)
    y = np.full(len(labels), -1, dtype=np.int64)
    if names is not None and _whole(labels):
        for row, label in enumerate(labels):
            if row not in gone:
                if 0 <= label < len(names):
                    y[row] = int(label)
                else:
                    bad.add(row, f"{raw.where(row)}: the label {label} is outside 0 … {len(names) - 1}")
        return y, names
    known = [label for row, label in enumerate(labels) if row not in gone]
    if any(isinstance(label, float) and not label.is_integer() for label in known):
        broken = next(
            r for r, label in enumerate(labels) if r not in gone and isinstance(label, float) and not label.is_integer()
        )
        raise DataError(f"{raw.where(broken)}: the label {labels[broken]} is not a class: whole numbers or words are needed")
    spelled = {label: str(int(label)) if isinstance(label, (int, float)) else str(label) for label in dict.fromkeys(known)}
    numeric = all(isinstance(label, (int, float)) for label in spelled)
    order = dict.fromkeys(spelled[k] for k in (sorted(spelled) if numeric else sorted(spelled, key=lambda k: spelled[k])))
    code = {word: i for i, word in enumerate(order)}
    for row, label in enumerate(labels):
        if row not in gone:
            y[row] = code[spelled[label]]
    return y, tuple(order)


def _is_missing(label: Any, numbered: bool) -> bool:
    """numbered: −1 is how the hub writes "no label" among numbered classes."""
    return label is None or label == "" or label != label or (numbered and label == -1)


def _whole(labels: Sequence[Any]) -> bool:
    return all(
        label is None or label != label or (isinstance(label, (int, float)) and float(label).is_integer()) for label in labels
    )


def _columns(raw: Raw, rows: Ints) -> dict[str, Any]:
    return {name: column.take(rows) for name, column in raw.columns.items()}


def _images(raw: Raw, rows: Ints, size: Size | None, bad: BadRows, name: str) -> tuple[NDArray[np.uint8], Ints]:
    assert raw.image is not None
    fetch = raw.image
    given = size is not None
    for row in rows.tolist() if size is None else ():
        try:
            size = _own_size(fetch(row))
            break
        except _UNREADABLE:
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
            except _UNREADABLE as error:
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
_UNREADABLE = (OSError, ValueError, SyntaxError, EOFError, struct.error, IndexError, OverflowError, MemoryError, Warning)


def _reason(error: Exception) -> str:
    if isinstance(error, DataError):
        return str(error)
    if isinstance(error, FileNotFoundError):
        return f"there is no file {error.filename}"
    if type(error).__name__ == "UnidentifiedImageError":  # its own words name a place in memory
        return "the image cannot be decoded (it is no image file of a known kind)"
    return f"the image cannot be decoded ({type(error).__name__}: {str(error)[:120]})"


def _texts(raw: Raw, rows: Ints, bad: BadRows) -> tuple[Words, Ints, int]:
    assert raw.texts is not None
    good = []
    for row in rows.tolist():
        if raw.texts[row] is None:
            bad.add(row, f"{raw.where(row)}: the text is missing")
        else:
            good.append(row)
    chosen = [raw.texts[row] or "" for row in good]
    long = sum(len(words) > text.LONGEST for words in chosen)
    return text.split_texts(chosen), np.array(good, dtype=np.int64), long


def _array(raw: Raw, rows: Ints, bad: BadRows) -> tuple[NDArray[Any], Ints]:
    assert raw.array is not None
    x = raw.array
    if x.dtype.kind in "bui" and x.dtype != np.uint8:
        x = x.astype(np.int64)
    elif x.dtype.kind == "f":
        finite = np.isfinite(x.reshape(len(x), -1)).all(axis=1)
        for row in rows[~finite[rows]].tolist():
            bad.add(row, f"{raw.where(row)}: a value is missing or not finite")
        rows = rows[finite[rows]]
        x = x.astype(np.float32)
    elif x.dtype != np.uint8:
        raise DataError(f"samples of type {x.dtype} cannot be used: numbers are needed")
    return x[rows], rows
