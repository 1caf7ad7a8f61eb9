"""Texts to the token ids of a tokeniser of Hugging Face's, padded to the right and truncated to one length."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedfew.data import hub, text
from fedfew.data.errors import DataError
from fedfew.federation import Federation, Samples
from fedfew.tasks import IGNORED
from fedfew.util.extras import install_command

FILE = "tokenizer.json"
PADDING_NAMES = ("[PAD]", "<pad>", "<|pad|>")
END_NAMES = ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>")  # of the end of a text: pads where there is no padding token
MISSING = f"tokenizer needs the packages transformers and tokenizers: {install_command('adapters')}"
BATCH = 1000  # texts encoded at once


@dataclass(frozen=True)
class Tokens:
    """A tokeniser with its padding and truncation; written as JSON, so that new texts are encoded without its folder."""

    kind: ClassVar[str] = "text"
    tokenizer: str = field(repr=False)  # the contents of tokenizer.json
    padding: int  # the token id of padding
    size: int  # of the vocabulary, added tokens included
    length: int = text.LENGTH
    name: str = ""  # of its folder, without those above it, or on the hub

    @classmethod
    def of(cls, tokenizer: Any, max_length: int | None = None) -> Tokens:
        """tokenizer: one of transformers, the folder that its ``save_pretrained`` wrote, tokenizer.json, or a name on the hub."""
        length, name = text.LENGTH if max_length is None else max_length, ""
        if isinstance(tokenizer, (str, Path)):
            folder = Path(tokenizer).expanduser()
            name = folder.resolve().name if folder.exists() else str(tokenizer)
            tokenizer = named_tokenizer(str(tokenizer))
        backend: Any = getattr(tokenizer, "backend_tokenizer", tokenizer)
        if not hasattr(backend, "to_str"):
            raise TypeError(
                f"tokenizer must be a fast tokenizer of transformers (PreTrainedTokenizerFast), its folder or its name on the "
                f"hub, not {type(tokenizer).__name__}"
            )
        padding = _padding(backend) if backend is tokenizer else tokenizer.pad_token_id
        if padding is None:
            padding = _first(backend, END_NAMES)
        if padding is None:
            where = f" ({name})" if name else ""
            raise ValueError(
                f"tokenizer{where} has no padding token: set tokenizer.pad_token, e.g. to tokenizer.eos_token, and save it "
                "(save_pretrained)"
            )
        special = backend.num_special_tokens_to_add(is_pair=False)
        if length <= special:
            raise ValueError(f"max_length must be above the tokenizer's {special} special tokens per text, not {length}")
        contents = json.loads(backend.to_str()) | {"padding": None, "truncation": None}  # our own are applied
        size = backend.get_vocab_size(with_added_tokens=True)
        return cls(json.dumps(contents, sort_keys=True), int(padding), size, length, name)

    @property
    def sha256(self) -> str:
        """Of all that decides the token ids but the length: the same for tokenisers that encode alike."""
        return hashlib.sha256(f"{self.padding} {self.tokenizer}".encode()).hexdigest()

    @property
    def about(self) -> dict[str, Any]:
        """What a federation records of it."""
        return {"name": self.name, "sha256": self.sha256, "padding": self.padding, "size": self.size, "max_length": self.length}

    @property
    def notes(self) -> list[str]:
        """A note about the padding."""
        special = {row["id"]: row["content"] for row in json.loads(self.tokenizer).get("added_tokens", ())}
        if (name := special.get(self.padding)) not in END_NAMES:
            return []
        return [f"texts are padded with {name}, the tokenizer's token for the end of a text: models neither see nor learn it"]

    def targets(self, ids: NDArray[Any]) -> NDArray[np.int64]:
        """What a language model is to predict for these texts: the tokens themselves, and −100 at padding."""
        return np.where(ids == self.padding, IGNORED, ids).astype(np.int64)

    def apply(self, raw: Sequence[str], client: str | int | None = None) -> NDArray[Any]:
        """Token ids [N, length] of texts; the same for all clients."""
        return self.encode(raw)[0]

    def encode(self, texts: Sequence[str]) -> tuple[NDArray[Any], int]:
        """Token ids, in as small an integer type as holds them, and how many texts were truncated."""
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ImportError(MISSING) from error
        encoder = Tokenizer.from_str(self.tokenizer)
        encoder.enable_truncation(self.length)
        encoder.enable_padding(direction="right", pad_id=self.padding, length=self.length)
        small = np.int16 if self.size <= np.iinfo(np.int16).max + 1 else np.int32
        ids, cut = np.empty((len(texts), self.length), dtype=small), 0
        for begin in range(0, len(texts), BATCH):
            for row, found in enumerate(encoder.encode_batch(list(texts[begin : begin + BATCH])), begin):
                ids[row] = found.ids
                cut += bool(found.overflowing)
        return ids, cut


def _padding(backend: Any) -> int | None:
    """Of a tokeniser without transformers' settings: the token that it pads with, or one of a usual name."""
    if backend.padding is not None:
        return int(backend.padding["pad_id"])
    return _first(backend, PADDING_NAMES)


def _first(backend: Any, names: Sequence[str]) -> int | None:
    return next((found for name in names if (found := backend.token_to_id(name)) is not None), None)


def named_tokenizer(name: str) -> Any:
    """The tokeniser in a folder, or on the hub: one of transformers or, of tokenizer.json alone, of tokenizers."""
    folder = Path(name).expanduser()
    alone = folder if folder.is_file() else folder / FILE
    try:
        if alone.is_file() and not (folder / "tokenizer_config.json").is_file():
            from tokenizers import Tokenizer

            return Tokenizer.from_file(str(alone))
    except ImportError as error:
        raise ImportError(MISSING) from error
    except Exception as error:  # tokenizers raises Exception itself
        raise DataError(f"tokenizer: {alone} cannot be read: {error}") from error
    if not hub.installed("transformers"):
        raise ImportError(MISSING)
    here = folder.is_dir()
    if not here and (reason := not_on_hub(name)):
        raise DataError(f"tokenizer: {reason}")
    from transformers import AutoTokenizer  # takes seconds

    try:
        return AutoTokenizer.from_pretrained(folder if here else name, local_files_only=here)
    except (OSError, ValueError) as error:  # not there, or not a tokeniser; the message has many lines
        where = (
            f"the folder {folder} holds no tokenizer that" if here else f"{name} is no folder, and as a name on the hub nothing"
        )
        raise DataError(f"tokenizer: {where} transformers can read ({str(error).strip().splitlines()[0]})") from error


def not_on_hub(name: str) -> str | None:
    """Why no tokeniser of that name can be had from the hub; None if it probably can, or is in the cache."""
    wanted = f"{name} is no folder with a tokenizer (save_pretrained of a tokenizer writes one)"
    if len(Path(name).parts) > 2 or name.startswith((".", "~", "/")):
        return f"{wanted}, and no name on the hub"
    reason = hub.unreachable_model(name)
    return None if reason is None else f"{wanted}, and as a name on the hub it cannot be had: {reason}"


def for_language_modelling(federation: Federation, tokens: Tokens) -> Federation:
    """The same texts, whose targets are their own tokens, and −100 at padding."""

    def own(samples: Samples) -> Samples:
        return replace(samples, y=torch.from_numpy(tokens.targets(samples.x.numpy())))

    changed = replace(federation, classes=tokens.size, class_names=(), task="language-modelling")
    return changed.with_splits(own)


def with_labels(data: Any) -> Any:
    """Texts without labels, [text, …] per client, as pairs that :func:`fedfew.data.load` reads; anything else unchanged."""
    if isinstance(data, dict):
        return {key: with_labels(value) for key, value in data.items()}
    if isinstance(data, list) and data and all(isinstance(one, str) for one in data):
        return (data, [0] * len(data))
    return [with_labels(one) for one in data] if isinstance(data, list) else data
