"""Letters as Flower's records and back: arrays in an ArrayRecord, numbers in a MetricRecord, words in a ConfigRecord.

Nothing is ever unpickled: arrays travel in numpy's own format, which is read with ``allow_pickle=False`` and only after names and
sizes have proved right.
"""

from __future__ import annotations

import math
from io import BytesIO
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedfew.flower.messages import FAILED, Letter, RefusedError, Specs, check_names, check_tree
from fedfew.stack import from_named, named_leaves

ARRAYS, NUMBERS, WORDS = "arrays", "numbers", "words"
HEADER = 4096  # bytes that numpy's format may take besides the numbers
MOST_VALUES = 1000  # of one name: a letter's lists are short


def to_records(letter: Letter) -> RecordDict:
    numbers = {name: value for name, value in letter.values.items() if _is_number(value)}
    words = {name: value for name, value in letter.values.items() if name not in numbers}
    arrays = {path: Array(t.detach().cpu().contiguous().numpy()) for path, t in named_leaves(letter.tree)}
    return RecordDict(
        {
            ARRAYS: ArrayRecord(arrays),
            NUMBERS: MetricRecord(numbers),  # type: ignore[arg-type]  # _is_number saw to it
            WORDS: ConfigRecord({"kind": letter.kind, **words}),
        }
    )


def to_letter(content: RecordDict, expected: Specs | None = None) -> Letter:
    """The letter in a message.

    expected: what its arrays must look like (checked before they are read, and again after); None: whatever they are, which is
    for a site that reads the server it has chosen to work with.
    """
    try:
        arrays, numbers, words = content[ARRAYS], content[NUMBERS], content[WORDS]
    except KeyError as missing:
        raise RefusedError("it is not one of fedfew's letters") from missing
    if not (isinstance(arrays, ArrayRecord) and isinstance(numbers, MetricRecord) and isinstance(words, ConfigRecord)):
        raise RefusedError("it is not one of fedfew's letters")
    values: dict[str, Any] = {**numbers, **words}
    kind = values.pop("kind", None)
    if not isinstance(kind, str) or any(isinstance(v, list) and len(v) > MOST_VALUES for v in values.values()):
        raise RefusedError("it is not one of fedfew's letters")
    if kind == FAILED and expected is not None:
        expected = {}  # a site that failed sends nothing but the word why
    if expected is not None:
        check_names(arrays, expected)
        for name, spec in expected.items():
            if len(arrays[name].data) > math.prod(spec.shape) * spec.dtype.itemsize + HEADER:
                raise RefusedError(f"{name} is larger than it should be")
    letter = Letter(kind, values, from_named({name: torch.from_numpy(_read(name, array)) for name, array in arrays.items()}))
    if expected is not None:
        check_tree(letter.tree, expected)
    return letter


def _read(name: str, array: Array) -> np.ndarray[Any, Any]:
    """The numbers in numpy's format; no more memory is taken than the bytes that are there."""
    stream = BytesIO(array.data)
    try:
        version = np.lib.format.read_magic(stream)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, column_order, dtype = header(stream)
        rest = array.data[stream.tell() :]
        if dtype.kind not in "fiub" or not dtype.isnative or math.prod(shape) * dtype.itemsize != len(rest):
            raise ValueError
        return np.frombuffer(rest, dtype).reshape(shape, order="F" if column_order else "C").copy(order="C")
    except (ValueError, EOFError, OverflowError, SyntaxError, TypeError) as error:
        raise RefusedError(f"{name} cannot be read as an array") from error


def _is_number(value: object) -> bool:
    if isinstance(value, list):
        return all(_is_number(inner) for inner in value)
    return isinstance(value, int | float) and not isinstance(value, bool)
