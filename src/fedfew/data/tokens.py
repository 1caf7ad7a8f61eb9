"""Texts to the token ids of a tokeniser of Hugging Face's, padded to the right and truncated to one length."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedfew.data import text
from fedfew.data.errors import DataError
from fedfew.federation import Federation, Samples
from fedfew.tasks import IGNORED

MISSING = 'tokenizer needs the packages transformers and tokenizers: pip install "fedfew[adapters]"'
BATCH = 1000  # texts encoded at once


@dataclass(frozen=True)
class Tokens:
    """A tokeniser with its padding and truncation; written as JSON, so that new texts are encoded without its folder."""

    kind: ClassVar[str] = "text"
    tokenizer: str = field(repr=False)  # the contents of tokenizer.json
    padding: int  # the token id of padding
    size: int  # of the vocabulary, added tokens included
    length: int = text.LENGTH

    @classmethod
    def of(cls, tokenizer: Any, max_length: int | None = None) -> Tokens:
        """tokenizer: one of transformers, or the folder that its ``save_pretrained`` wrote."""
        length = text.LENGTH if max_length is None else max_length
        if isinstance(tokenizer, (str, Path)):
            tokenizer = _from_folder(tokenizer)
        backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        if not hasattr(backend, "to_str"):
            raise TypeError(
                f"tokenizer must be a fast tokenizer of transformers (PreTrainedTokenizerFast) or its folder, not "
                f"{type(tokenizer).__name__}"
            )
        if tokenizer.pad_token_id is None:
            raise ValueError("tokenizer has no padding token: set tokenizer.pad_token, e.g. to tokenizer.eos_token")
        special = tokenizer.num_special_tokens_to_add()
        if length <= special:
            raise ValueError(f"max_length must be above the tokenizer's {special} special tokens per text, not {max_length}")
        contents = json.loads(backend.to_str()) | {"padding": None, "truncation": None}  # our own are applied
        return cls(json.dumps(contents), int(tokenizer.pad_token_id), len(tokenizer), length)

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


def _from_folder(folder: str | Path) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ImportError(MISSING) from error
    if not Path(folder).expanduser().is_dir():
        raise DataError(f"tokenizer: there is no folder {folder}; save_pretrained of a tokenizer writes one")
    return AutoTokenizer.from_pretrained(Path(folder).expanduser(), local_files_only=True)


def for_language_modelling(federation: Federation, tokens: Tokens) -> Federation:
    """The same texts, whose targets are their own tokens, and −100 at padding."""

    def own(samples: Samples) -> Samples:
        x = samples.x.to(torch.int64)
        return replace(samples, y=torch.where(x == tokens.padding, IGNORED, x))

    return replace(
        federation,
        train=own(federation.train),
        test=own(federation.test),
        val=None if federation.val is None else own(federation.val),
        classes=tokens.size,
        class_names=(),
        task="language-modelling",
    )


def with_labels(data: Any) -> Any:
    """Texts without labels, [text, …] per client, as pairs that :func:`fedfew.data.load` reads; anything else unchanged."""
    if isinstance(data, dict):
        return {key: with_labels(value) for key, value in data.items()}
    if isinstance(data, list) and data and all(isinstance(one, str) for one in data):
        return (data, [0] * len(data))
    return [with_labels(one) for one in data] if isinstance(data, list) else data
