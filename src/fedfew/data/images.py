"""Image files to bytes [C, H, W]."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedfew.data import workers
from fedfew.data.decoded import Ints
from fedfew.data.errors import BadRows, DataError
from fedfew.data.progress import progress
from fedfew.data.raw import RawData
from fedfew.imaging.decoding import UNREADABLE, Chunk, ColourFoundError, Size, decode_chunk, reason_of, scaled_to_bytes, size_of
from fedfew.imaging.process import DecodingProcess, ProcessDiedError

DEPTHS = (8, 10, 12, 14, 16)  # bits that cameras and scanners use
MANY = 10_000  # so many small images are worth starting processes for
_CHUNK = 256
_LARGE = 8192  # bytes of an image file


@dataclass(frozen=True)
class DecodedImages:
    pixels: NDArray[np.uint8]
    rows: Ints  # those that could be decoded
    size: Size
    depth: int  # bits per value in the files; more than 8 are scaled to 8
    notes: tuple[str, ...]


@dataclass
class _Decoding:
    """The state of decoding one set of images."""

    size: Size
    resize: bool
    colour_allowed: bool  # False: channels were guessed from a grey image
    pixels: NDArray[np.uint8]
    kinds: Counter[str] = field(default_factory=Counter)
    deep: dict[int, NDArray[np.uint16]] = field(default_factory=dict)  # images of more than 8 bits, scaled when all are known


def decode_images(raw: RawData, rows: Ints, size: Size | None, bad: BadRows, name: str) -> DecodedImages:
    """All images in one array.

    Unless ``size`` fixes the channels: one colour image makes all images have three channels, else they have one. Images of more
    than 8 bits are scaled by the smallest usual depth that holds the largest value of the whole set.
    """
    first = (0, 0, 0) if size is not None and size[0] else _first_size(raw, rows)
    full = first if size is None else (size[0] or first[0], *size[1:])
    fixed = size is not None and size[0] != 0
    state = _Decoding(full, size is not None, fixed or full[0] == 3, np.zeros((len(rows), *full), dtype=np.uint8))
    try:
        failed = _decode_all(raw, rows, state, bad, name)
    except ColourFoundError:
        full = (3, *full[1:])
        state = _Decoding(full, size is not None, True, np.zeros((len(rows), *full), dtype=np.uint8))
        failed = _decode_all(raw, rows, state, bad, name)
    depth = _scale_deep(state)
    notes = _notes(state, len(rows) - len(failed), depth)
    if failed:
        good = np.setdiff1d(np.arange(len(rows)), np.array(failed, dtype=np.int64))
        return DecodedImages(state.pixels[good], rows[good], full, depth, notes)
    return DecodedImages(state.pixels, rows, full, depth, notes)


def _decode_all(raw: RawData, rows: Ints, state: _Decoding, bad: BadRows, name: str) -> list[int]:
    """Fill ``state``; returns the places of images that could not be decoded."""
    failures: list[int] = []
    with progress(f"decoding {name}", len(rows)) as advance:
        for begin, chunk in _chunks(raw, rows, state):
            for i, reason in chunk.failed.items():
                row = int(rows[begin + i])
                bad.add(row, f"{raw.where(row)}: {reason}")
                failures.append(begin + i)
            state.kinds.update(chunk.kinds)
            state.deep.update({begin + i: values for i, values in chunk.deep.items()})
            advance(_CHUNK)
    return failures


def _chunks(raw: RawData, rows: Ints, state: _Decoding) -> Iterator[tuple[int, Chunk]]:
    """The chunks, in order, and where each begins.

    Small images spend their time in Python, where threads wait for each other; large ones in the decoder.
    """
    options = {"resize": state.resize, "colour_allowed": state.colour_allowed}

    def here(begin: int) -> Chunk:
        return decode_chunk(_files(raw, rows[begin : begin + _CHUNK]), state.pixels[begin : begin + _CHUNK], **options)

    def there(process: DecodingProcess, begin: int) -> Chunk:
        files = list(_files(raw, rows[begin : begin + _CHUNK]))
        try:
            return process.decode(files, state.pixels[begin : begin + _CHUNK], **options)
        except ProcessDiedError as error:
            last = min(begin + _CHUNK, len(rows)) - 1
            raise DataError(f"{raw.where(int(rows[begin]))} … {raw.where(int(rows[last]))}: {error}") from error

    begins = list(range(0, len(rows), _CHUNK))
    if not begins:
        return
    first = here(0)
    yield 0, first
    rest = begins[1:]
    if first.length / _CHUNK > _LARGE:
        chunks = workers.in_threads(here, rest)
    elif len(rows) >= MANY:
        chunks = workers.in_processes(there, here, rest)
    else:
        chunks = map(here, rest)
    yield from zip(rest, chunks, strict=True)


def _files(raw: RawData, rows: Ints) -> Iterator[bytes | str]:
    """The image files of these rows; in place of one that cannot be read, the reason."""
    assert raw.image is not None
    for row in rows.tolist():
        try:
            contents: bytes | str = raw.image(row)
        except UNREADABLE as error:
            contents = reason_of(error)
        yield contents


def _scale_deep(state: _Decoding) -> int:
    """Scale the images of more than 8 bits by the depth of the whole set; returns that depth."""
    if not state.deep:
        return 8
    largest = max(int(values.max()) for values in state.deep.values())
    depth = next(bits for bits in DEPTHS if largest < 2**bits)
    for place, values in state.deep.items():
        state.pixels[place] = scaled_to_bytes(values, depth)  # one channel is repeated into three if there are colours
    state.kinds["deep"], state.kinds["largest"] = len(state.deep), largest
    state.deep.clear()
    return depth


def _notes(state: _Decoding, decoded: int, depth: int) -> tuple[str, ...]:
    kinds, notes = state.kinds, []
    if kinds["grey"] and kinds["colour"]:
        kept = "grey values repeated in three channels" if state.size[0] == 3 else "colours converted to grey"
        notes.append(f"{kinds['grey']:,} of {decoded:,} images are grey, the others have colours: {kept}")
    if kinds["deep"]:
        part = "" if kinds["deep"] == decoded else f"; the other {decoded - kinds['deep']:,} have 8 bits"
        notes.append(
            f"{kinds['deep']:,} images have 16 bits per value, the largest value is {kinds['largest']:,}: "
            f"scaled from {depth} bits to 8{part}"
        )
    if kinds["transparent"]:
        notes.append(f"{kinds['transparent']:,} images have transparency, which is ignored")
    return tuple(notes)


def _first_size(raw: RawData, rows: Ints) -> Size:
    """The size of the first image that can be read."""
    assert raw.image is not None
    for row in rows.tolist():
        try:
            return size_of(raw.image(row))
        except UNREADABLE:
            continue  # reported when it is decoded
    return 3, 1, 1  # no image can be read
