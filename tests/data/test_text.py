"""Texts to token ids."""

from __future__ import annotations

import numpy as np
import pytest

from fedfew.data import text


def test_words_are_lower_case_and_punctuation_is_single() -> None:
    assert text.words_of("Wall St. Bears (Reuters) -- it's") == [
        "wall",
        "st",
        ".",
        "bears",
        "(",
        "reuters",
        ")",
        "-",
        "-",
        "it",
        "'",
        "s",
    ]


def test_encoding_by_hand() -> None:
    words = text.split_texts(["a b a", "c", "", "b c d e"])
    vocabulary = text.Vocabulary.built_from(words, np.array([0, 1, 3]))
    # a, b, c twice each (alphabet decides), then d, e
    tokens = vocabulary.encode(words, np.arange(4), length=5)
    assert tokens.tolist() == [[1, 4, 5, 4, 0], [1, 6, 0, 0, 0], [1, 0, 0, 0, 0], [1, 5, 6, 7, 8]]
    assert tokens.dtype == np.int16
    assert vocabulary.encode(words, np.array([3]), length=3).tolist() == [[1, 5, 6]]


def test_words_of_no_training_text_are_unknown() -> None:
    words = text.split_texts(["seen seen often", "secret"])
    from_train = text.Vocabulary.built_from(words, np.array([0]))
    assert from_train.encode(words, np.array([1]), length=2).tolist() == [[text.CLS, text.UNKNOWN]]
    published = text.Vocabulary.built_from(words, None)
    assert published.encode(words, np.array([1]), length=2).tolist() == [[text.CLS, 6]]


def test_a_small_vocabulary_keeps_the_frequent() -> None:
    words = text.split_texts(["x x x y y z"])
    vocabulary = text.Vocabulary.built_from(words, None, size=6)
    assert vocabulary.encode(words, np.array([0]), length=7).tolist() == [[1, 4, 4, 4, 5, 5, text.UNKNOWN]]
    with pytest.raises(ValueError, match="larger than the 4 special"):
        text.Vocabulary.built_from(words, None, size=4)
    assert text.Vocabulary.built_from(words, None, size=40_000).encode(words, np.array([0])).dtype == np.int32


def test_taking_texts() -> None:
    words = text.split_texts(["a b", "c", "", "d e f"])
    taken = words.take(np.array([3, 2, 0]))
    spelled = [[words.inventory[i] for i in taken.ids[taken.offsets[k] : taken.offsets[k + 1]]] for k in range(3)]
    assert spelled == [["d", "e", "f"], [], ["a", "b"]]


@pytest.mark.parametrize("long", ["word " * 200_000, "x" * 10**6, "." * 10**6])
def test_a_text_of_a_million_characters(long: str) -> None:
    """In steps that grow as its length does: a million squared would take hours."""
    words = text.split_texts([long])
    tokens = text.Vocabulary.built_from(words, None).encode(words, np.array([0]))
    assert tokens.shape == (1, 200)
