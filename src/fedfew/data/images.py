"""Image files to bytes [C, H, W]."""

from __future__ import annotations

import io
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedfew.data import workers
from fedfew.data.decoded import Ints
from fedfew.data.errors import BadRows, DataError
from fedfew.data.progress import progress
from fedfew.data.raw import RawData

if TYPE_CHECKING:
    from PIL import Image

Size = tuple[int, int, int]  # channels (0: those that the images have), height, width
MOST_PIXELS = 50_000_000  # larger images are refused before they are decoded
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # all others, some of which start programs, are refused
DEPTHS = (8, 10, 12, 14, 16)  # bits that cameras and scanners use
MANY = 10_000  # so many small images are worth starting processes for
_CHUNK = 256
_LARGE = 8192  # bytes of an image file

# What Pillow and the file system raise for files that are not images. Pillow raises SyntaxError for a broken PNG.
UNREADABLE = (OSError, ValueError, SyntaxError, EOFError, struct.error, IndexError, OverflowError, MemoryError, Warning)


class _ColourFoundError(Exception):
    """An image among grey ones has colours."""


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


@dataclass
class _Chunk:
    """What decoding some of the images brought besides their pixels."""

    failed: dict[int, str] = field(default_factory=dict)  # why, by place
    length: int = 0  # bytes read
    kinds: Counter[str] = field(default_factory=Counter)
    deep: dict[int, NDArray[np.uint16]] = field(default_factory=dict)


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
    except _ColourFoundError:
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
    assert raw.image is not None
    fetch = raw.image

    def work(begin: int) -> _Chunk:
        chunk = _Chunk()
        for i in range(begin, min(begin + _CHUNK, len(rows))):
            try:
                contents = fetch(int(rows[i]))
                chunk.length += len(contents)
                _decode_one(contents, state, i, chunk)
            except UNREADABLE as error:
                chunk.failed[i] = _reason(error)
        return chunk

    failures: list[int] = []
    with progress(f"decoding {name}", len(rows)) as advance:
        for chunk in _chunks(work, list(range(0, len(rows), _CHUNK)), state):
            for i, reason in chunk.failed.items():
                bad.add(int(rows[i]), f"{raw.where(int(rows[i]))}: {reason}")
                failures.append(i)
            state.kinds.update(chunk.kinds)
            state.deep.update(chunk.deep)
            advance(_CHUNK)
    return failures


def _chunks(work: Callable[[int], _Chunk], begins: list[int], state: _Decoding) -> Iterator[_Chunk]:
    """Small images spend their time in Python, where threads wait for each other; large ones in the decoder."""
    if not begins:
        return
    first = work(begins[0])
    yield first
    if first.length / _CHUNK > _LARGE:
        yield from workers.in_threads(work, begins[1:])
    elif len(begins) * _CHUNK >= MANY and workers.can_fork():
        pixels = workers.shared_bytes(state.pixels.shape)
        pixels[:_CHUNK] = state.pixels[:_CHUNK]
        state.pixels = pixels
        yield from workers.in_processes(work, begins[1:])
    else:
        yield from map(work, begins[1:])


def _decode_one(contents: bytes, state: _Decoding, place: int, chunk: _Chunk) -> None:
    with open_image(contents) as image:
        deep = _is_deep(image)
        grey = deep or _is_grey(image)
        if not grey and not state.colour_allowed:
            raise _ColourFoundError
        chunk.kinds["grey" if grey else "colour"] += 1
        chunk.kinds["transparent"] += "A" in image.getbands() or "transparency" in image.info
        if deep:
            chunk.deep[place] = _deep_values(image, state.size, resize=state.resize)
        else:
            state.pixels[place] = decode_image(image, state.size, resize=state.resize)


def decode_image(image: Image.Image, size: Size, *, resize: bool) -> NDArray[np.uint8]:
    """One image of 8 bits per value as bytes [C, H, W]."""
    mode = "L" if size[0] == 1 else "RGB"
    array = np.asarray(_sized(image if image.mode == mode else image.convert(mode), size, resize))
    return array[None] if size[0] == 1 else array.transpose(2, 0, 1)


def decode_alone(contents: bytes, size: Size, *, resize: bool, depth: int) -> NDArray[np.uint8]:
    """One image file as bytes [C, H, W], scaled as the set that it was trained with."""
    with open_image(contents) as image:
        if not _is_deep(image):
            return decode_image(image, size, resize=resize)
        values = _deep_values(image, size, resize=resize)
    if int(values.max()) >= 2**depth:
        raise DataError(f"the image has values of more than the {depth} bits that images had in training")
    return np.repeat(scaled_to_bytes(values, depth), size[0], axis=0)


def open_image(contents: bytes) -> Image.Image:
    """An image whose format is one of the usual ones and whose size is acceptable, not decoded yet."""
    from PIL import Image

    try:
        image = Image.open(io.BytesIO(contents), formats=FORMATS)
    except Image.DecompressionBombError:
        raise DataError(f"the image has more than the {MOST_PIXELS:,} pixels that are accepted") from None
    if image.size[0] * image.size[1] > MOST_PIXELS:
        raise DataError(f"the image has {image.size[0]}×{image.size[1]} pixels, more than the {MOST_PIXELS:,} that are accepted")
    return image


def scaled_to_bytes(values: NDArray[Any], depth: int) -> NDArray[np.uint8]:
    """Values of ``depth`` bits as bytes: 0 stays 0, the largest becomes 255."""
    return np.minimum(np.round(values * (255 / (2**depth - 1))), 255).astype(np.uint8)


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
            with open_image(raw.image(row)) as image:
                image.load()
                return (1 if _is_deep(image) or _is_grey(image) else 3), image.size[1], image.size[0]
        except UNREADABLE:
            continue  # reported when it is decoded
    return 3, 1, 1  # no image can be read


def _is_deep(image: Image.Image) -> bool:
    return image.mode in ("I", "F") or image.mode.startswith("I;16")


def _is_grey(image: Image.Image) -> bool:
    if image.mode in ("P", "PA"):
        palette = np.array(image.getpalette("RGB") or [0, 0, 1]).reshape(-1, 3)
        return bool((palette == palette[:, :1]).all())
    return image.mode in ("1", "L", "LA", "La")


def _deep_values(image: Image.Image, size: Size, *, resize: bool) -> NDArray[np.uint16]:
    """The values of a grey image of more than 8 bits, [1, H, W]."""
    from PIL import Image

    if image.mode == "F":
        raise DataError("the image holds floating-point values of unknown range: save it with 8 or 16 bits, or load an array")
    values = np.asarray(image)
    if values.min() < 0 or values.max() > 65535:
        raise DataError("the image holds 32-bit values outside 0 … 65535: save it with 8 or 16 bits, or load an array")
    resized = _sized(Image.fromarray(values.astype(np.float32)), size, resize)  # Pillow does not resize 16-bit images everywhere
    return np.round(np.asarray(resized)).astype(np.uint16)[None]


def _sized(image: Image.Image, size: Size, resize: bool) -> Image.Image:
    from PIL import Image

    _, height, width = size
    if image.size == (width, height):
        return image
    if not resize:
        raise DataError(
            f"the image is {image.size[0]}×{image.size[1]} pixels, but the first is {width}×{height}: size=… resizes all images"
        )
    return image.resize((width, height), Image.Resampling.BILINEAR)


def _reason(error: Exception) -> str:
    if isinstance(error, DataError):
        return str(error)
    if isinstance(error, FileNotFoundError):
        return "there is no such image file"
    if type(error).__name__ == "UnidentifiedImageError":  # its message names a memory address
        return f"the image cannot be decoded (its format is none of {', '.join(FORMATS)})"
    return f"the image cannot be decoded ({type(error).__name__}: {str(error)[:120]})"
