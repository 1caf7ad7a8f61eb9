"""Texts to token ids: lower-case words and single punctuation marks, a vocabulary, a fixed length."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedfew.data.decoded import Ints, Words

PAD, CLS, UNKNOWN, EOS = range(4)
SPECIALS = 4
VOCABULARY = 32_000
LENGTH = 200
LONGEST = 20_000  # characters of a text that are read: a hundred per token that a model sees

_WORD = re.compile(r"\w+|[^\w\s]")


def words_of(text: str) -> list[str]:
    """Lower-case words and single punctuation marks of (the beginning of) a text."""
    return _WORD.findall(text[:LONGEST].lower())


def split_texts(texts: Iterable[str]) -> Words:
    """All texts split into words."""
    number: dict[str, int] = {}
    ids: list[NDArray[np.int32]] = []
    for text in texts:
        ids.append(np.array([number.setdefault(word, len(number)) for word in words_of(text)], dtype=np.int32))
    offsets = np.concatenate([[0], np.cumsum([len(i) for i in ids], dtype=np.int64)]).astype(np.int64)
    flat = np.concatenate(ids) if ids else np.zeros(0, np.int32)
    return Words(flat, offsets, tuple(number))


@dataclass(frozen=True)
class Vocabulary:
    """Token ids: ``token[i]`` is that of word i of an inventory."""

    token: NDArray[np.int32]
    size: int
    words: tuple[str, ...]  # those with a token of their own, in order of their tokens

    @classmethod
    def built_from(cls, words: Words, rows: Ints | None, size: int = VOCABULARY) -> Vocabulary:
        """The most frequent words of the given rows (None: of all), the more frequent the smaller the id; ties by alphabet.

        All other words become ``unk``.
        """
        if size <= SPECIALS:
            raise ValueError(f"vocabulary must be larger than the {SPECIALS} special tokens, not {size}")
        counted = words if rows is None else words.take(rows)
        counts = np.bincount(counted.ids, minlength=len(words.inventory))
        seen = np.flatnonzero(counts)
        order = sorted(seen.tolist(), key=lambda i: (-counts[i], words.inventory[i]))[: size - SPECIALS]
        token = np.full(len(words.inventory), UNKNOWN, dtype=np.int32)
        token[order] = np.arange(SPECIALS, SPECIALS + len(order), dtype=np.int32)
        return cls(token, size, tuple(words.inventory[i] for i in order))

    def encode(self, words: Words, rows: Ints, length: int = LENGTH) -> NDArray[np.int16] | NDArray[np.int32]:
        """``cls`` and the words of each row, cut or padded to ``length``. As small an integer type as holds the ids."""
        small = np.int16 if self.size <= np.iinfo(np.int16).max + 1 else np.int32
        encoded = np.full((len(rows), length), PAD, dtype=small)
        if length == 0:
            return encoded
        encoded[:, 0] = CLS
        begin, end = words.offsets[:-1][rows], words.offsets[1:][rows]
        for position in range(1, length):
            at = begin + position - 1
            there = np.flatnonzero(at < end)
            if len(there) == 0:
                break
            encoded[there, position] = self.token[words.ids[at[there]]]
        return encoded
