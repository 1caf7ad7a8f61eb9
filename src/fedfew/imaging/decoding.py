"""The contents of image files to bytes [C, H, W]."""

from __future__ import annotations

import io
import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedfew.util.data_error import DataError

if TYPE_CHECKING:
    from PIL import Image

Size = tuple[int, int, int]  # channels, height, width
MOST_PIXELS = 50_000_000  # larger images are refused before they are decoded
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # all others, some of which start programs, are refused

# What Pillow and the file system raise for files that are not images. Pillow raises SyntaxError for a broken PNG.
UNREADABLE = (OSError, ValueError, SyntaxError, EOFError, struct.error, IndexError, OverflowError, MemoryError, Warning)


class ColourFoundError(Exception):
    """An image among grey ones has colours."""


@dataclass
class Chunk:
    """What decoding some images brought besides their pixels. Images are numbered from 0."""

    failed: dict[int, str] = field(default_factory=dict)  # why, by number
    kinds: Counter[str] = field(default_factory=Counter)
    deep: dict[int, NDArray[np.uint16]] = field(default_factory=dict)  # images of more than 8 bits, to be scaled later
    length: int = 0  # bytes of the files


def decode_chunk(files: Iterable[bytes | str], pixels: NDArray[np.uint8], *, resize: bool, colour_allowed: bool) -> Chunk:
    """Decode files into ``pixels`` [N, C, H, W]. A string in place of a file is the reason why it could not be read."""
    chunk = Chunk()
    for i, contents in enumerate(files):
        if isinstance(contents, str):
            chunk.failed[i] = contents
            continue
        chunk.length += len(contents)
        try:
            _decode_into(contents, pixels, i, chunk, resize, colour_allowed)
        except UNREADABLE as error:
            chunk.failed[i] = reason_of(error)
    return chunk


def _decode_into(contents: bytes, pixels: NDArray[np.uint8], i: int, chunk: Chunk, resize: bool, colour_allowed: bool) -> None:
    size: Size = pixels.shape[1:]
    with open_image(contents) as image:
        deep = is_deep(image)
        grey = deep or is_grey(image)
        if not grey and not colour_allowed:
            raise ColourFoundError
        chunk.kinds["grey" if grey else "colour"] += 1
        chunk.kinds["transparent"] += "A" in image.getbands() or "transparency" in image.info
        if deep:
            chunk.deep[i] = deep_values(image, size, resize=resize)
        else:
            pixels[i] = decode_image(image, size, resize=resize)


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


def decode_image(image: Image.Image, size: Size, *, resize: bool) -> NDArray[np.uint8]:
    """One image of 8 bits per value as bytes [C, H, W]."""
    mode = "L" if size[0] == 1 else "RGB"
    array = np.asarray(_sized(image if image.mode == mode else image.convert(mode), size, resize))
    return array[None] if size[0] == 1 else array.transpose(2, 0, 1)


def decode_alone(contents: bytes, size: Size, *, resize: bool, depth: int) -> NDArray[np.uint8]:
    """One image file as bytes [C, H, W], scaled as the set that it was trained with."""
    with open_image(contents) as image:
        if not resize and image.size != size[:0:-1]:
            raise DataError(
                f"the image is {image.size[0]}×{image.size[1]} pixels, but the models were trained on {size[2]}×{size[1]}: "
                "resize it; models trained with size=… take images of any size"
            )
        if not is_deep(image):
            return decode_image(image, size, resize=resize)
        values = deep_values(image, size, resize=resize)
    if int(values.max()) >= 2**depth:
        raise DataError(f"the image has values of more than the {depth} bits that images had in training")
    return np.repeat(scaled_to_bytes(values, depth), size[0], axis=0)


def scaled_to_bytes(values: NDArray[Any], depth: int) -> NDArray[np.uint8]:
    """Values of ``depth`` bits as bytes: 0 stays 0, the largest becomes 255."""
    return np.minimum(np.round(values * (255 / (2**depth - 1))), 255).astype(np.uint8)


def size_of(contents: bytes) -> Size:
    """The size of an image that can be decoded."""
    with open_image(contents) as image:
        image.load()
        return (1 if is_deep(image) or is_grey(image) else 3), image.size[1], image.size[0]


def is_deep(image: Image.Image) -> bool:
    return image.mode in ("I", "F") or image.mode.startswith("I;16")


def is_grey(image: Image.Image) -> bool:
    if image.mode in ("P", "PA"):
        palette = np.array(image.getpalette("RGB") or [0, 0, 1]).reshape(-1, 3)
        return bool((palette == palette[:, :1]).all())
    return image.mode in ("1", "L", "LA", "La")


def deep_values(image: Image.Image, size: Size, *, resize: bool) -> NDArray[np.uint16]:
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


def reason_of(error: Exception) -> str:
    """Why an image cannot be used, in one line."""
    if isinstance(error, DataError):
        return str(error)
    if isinstance(error, FileNotFoundError):
        return "there is no such image file"
    if type(error).__name__ == "UnidentifiedImageError":  # its message names a memory address
        return f"the image cannot be decoded (its format is none of {', '.join(FORMATS)})"
    return f"the image cannot be decoded ({type(error).__name__}: {str(error)[:120]})"
