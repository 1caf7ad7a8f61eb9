"""From raw tables, texts and images to the samples that models were trained on: fitted on training data, written as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedfew import federation
from fedfew.data import text
from fedfew.data.errors import DataError
from fedfew.data.table_preprocessing import Statistics, TablePreprocessing
from fedfew.data.tokens import Tokens
from fedfew.federation import Pixels
from fedfew.imaging.decoding import decode_alone, reason_of


@dataclass(frozen=True)
class TextPreprocessing:
    """Words to token ids: word i of the vocabulary is token i + 4, after the special tokens."""

    kind: ClassVar[str] = "text"
    words: tuple[str, ...]
    size: int  # of the vocabulary, special tokens and unused places included
    length: int = text.LENGTH

    def apply(self, raw: Sequence[str], client: str | int | None = None) -> NDArray[Any]:
        """Token ids [N, length] of texts; the same for all clients."""
        words = text.split_texts(raw)
        number = {word: text.SPECIALS + i for i, word in enumerate(self.words)}
        token = np.array([number.get(word, text.UNKNOWN) for word in words.inventory], dtype=np.int32)
        return text.Vocabulary(token, self.size, self.words).encode(words, np.arange(len(words)), self.length)


@dataclass(frozen=True)
class ImagePreprocessing:
    """Image files to bytes of one size."""

    kind: ClassVar[str] = "image"
    size: tuple[int, int, int]  # channels, height, width
    resized: bool  # whether images of other sizes are resized, or refused
    depth: int  # bits of images with 16 bits per value
    pixels: Pixels  # how bytes become model inputs, see fedfew.samples.as_input

    def apply(self, raw: Sequence[Any], client: str | int | None = None) -> NDArray[np.uint8]:
        """Bytes [N, C, H, W] of image files, encoded images, PIL images or arrays of bytes; the same for all clients."""
        return np.stack([self._one(item) for item in raw])

    def _one(self, item: Any) -> NDArray[np.uint8]:
        try:
            return decode_alone(_encoded(item), self.size, resize=self.resized, depth=self.depth)
        except (DataError, OSError, SyntaxError) as error:  # the last: of Pillow, for damaged files
            named = f"{item}: " if isinstance(item, (str, Path)) else ""
            raise DataError(f"{named}{reason_of(error)}") from None


def _encoded(item: Any) -> bytes:
    """An image as the contents of a file."""
    if isinstance(item, bytes):
        return item
    if isinstance(item, (str, Path)):
        return Path(item).read_bytes()
    from fedfew.data.objects import encoded_image

    if hasattr(item, "save"):  # of Pillow
        return encoded_image(item)
    array = np.asarray(item)
    if array.dtype not in (np.uint8, np.uint16) or array.ndim not in (2, 3):
        raise DataError(
            f"an image must be a file, a PIL image or an array [H, W(, C)] of bytes, not {array.dtype} {list(array.shape)}"
        )
    from PIL import Image

    return encoded_image(Image.fromarray(array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array))


Preprocessing = TablePreprocessing | TextPreprocessing | Tokens | ImagePreprocessing


def to_document(preprocessing: federation.Preprocessing) -> dict[str, Any]:
    """As JSON values."""
    if not isinstance(preprocessing, Preprocessing):
        raise TypeError(f"{type(preprocessing).__name__} is no preprocessing of fedfew.data and cannot be written")
    hashed = {"sha256": preprocessing.sha256} if isinstance(preprocessing, Tokens) else {}
    return {"kind": preprocessing.kind} | asdict(preprocessing) | hashed


def from_document(document: dict[str, Any]) -> Preprocessing:
    """What :func:`to_document` was given, equal in every value."""
    values = dict(document)
    kind = values.pop("kind", None)
    try:
        if kind == "text" and "tokenizer" in values:
            tokens = Tokens(values["tokenizer"], values["padding"], values["size"], values["length"], values["name"])
            if values["sha256"] != tokens.sha256:
                raise DataError(
                    f"the tokenizer {tokens.name} written here is not the one that the models were trained with: "
                    "its sha256 differs"
                )
            return tokens
        if kind == "text":
            return TextPreprocessing(tuple(values["words"]), values["size"], values["length"])
        if kind == "image":
            channels, height, width = values["size"]
            return ImagePreprocessing((channels, height, width), values["resized"], values["depth"], values["pixels"])
        if kind == "table":
            return TablePreprocessing(
                tuple(values["numbers"]),
                tuple(values["boolean"]),
                tuple((name, tuple(found)) for name, found in values["categories"]),
                values["scale"],
                _statistics(values["overall"]),
                tuple((name, _statistics(found)) for name, found in values["clients"]),
            )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"the preprocessing of kind {kind!r} is damaged ({type(error).__name__}: {error})") from error
    raise DataError(f"there is no preprocessing of kind {kind!r}")


def _statistics(values: dict[str, Any]) -> Statistics:
    return Statistics(tuple(values["fill"]), tuple(values["shift"]), tuple(values["width"]))
