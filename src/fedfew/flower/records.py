"""Messages as Flower's records and back: arrays in an ArrayRecord, numbers in a MetricRecord, texts in a ConfigRecord.

Nothing is ever unpickled: arrays are sent in numpy's own format, which is read with ``allow_pickle=False`` and only after names
and sizes have been checked.
"""

from __future__ import annotations

import math
from io import BytesIO
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedfew.flower.messages import FAILED, MAX_LIST, RefusedError, SiteMessage, Specs, check_names, check_tree
from fedfew.stack import from_named, named_leaves

ARRAYS, NUMBERS, TEXTS = "arrays", "numbers", "texts"
MAX_HEADER = 4096  # bytes that numpy's format may take besides the numbers
NOT_OURS = "it is not one of fedfew's messages"


def to_records(message: SiteMessage) -> RecordDict:
    numbers = {name: value for name, value in message.values.items() if _is_number(value)}
    texts = {name: value for name, value in message.values.items() if name not in numbers}
    arrays = {path: Array(t.detach().cpu().contiguous().numpy()) for path, t in named_leaves(message.tree)}
    return RecordDict(
        {
            ARRAYS: ArrayRecord(arrays),
            NUMBERS: MetricRecord(numbers),  # type: ignore[arg-type]  # _is_number saw to it
            TEXTS: ConfigRecord({"kind": message.kind, **texts}),
        }
    )


def from_records(content: RecordDict, expected: Specs | None = None) -> SiteMessage:
    """The message in Flower's records.

    expected: shapes and types of its arrays, checked before they are read and again after. None: not checked, for a site
    that reads a message of the server it has chosen to work with.
    """
    try:
        arrays, numbers, texts = content[ARRAYS], content[NUMBERS], content[TEXTS]
    except KeyError as missing:
        raise RefusedError(NOT_OURS) from missing
    if not (isinstance(arrays, ArrayRecord) and isinstance(numbers, MetricRecord) and isinstance(texts, ConfigRecord)):
        raise RefusedError(NOT_OURS)
    values: dict[str, Any] = {**numbers, **texts}
    kind = values.pop("kind", None)
    if not isinstance(kind, str) or any(isinstance(v, list) and len(v) > MAX_LIST for v in values.values()):
        raise RefusedError(NOT_OURS)
    if kind == FAILED and expected is not None:
        expected = {}  # a site that failed sends the category of its error and no arrays
    if expected is not None:
        check_names(arrays, expected)
        for name, spec in expected.items():
            if len(arrays[name].data) > math.prod(spec.shape) * spec.dtype.itemsize + MAX_HEADER:
                raise RefusedError(f"{name} is larger than it should be")
    tree = from_named({name: torch.from_numpy(_read(name, array)) for name, array in arrays.items()})
    if expected is not None:
        check_tree(tree, expected)
    return SiteMessage(kind, values, tree)


def _read(name: str, array: Array) -> np.ndarray[Any, Any]:
    """The numbers in numpy's format; this never allocates more memory than the bytes received."""
    stream = BytesIO(array.data)
    try:
        version = np.lib.format.read_magic(stream)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, column_order, dtype = header(stream)
        rest = array.data[stream.tell() :]
        if dtype.kind not in "fiub" or not dtype.isnative or math.prod(shape) * dtype.itemsize != len(rest):
            raise ValueError
        return np.frombuffer(rest, dtype).reshape(shape, order="F" if column_order else "C").copy(order="C")
    except Exception as error:  # numpy's header is a Python literal: parsing one may raise nearly anything, also RecursionError
        raise RefusedError(f"{name} cannot be read as an array") from error


def _is_number(value: object) -> bool:
    if isinstance(value, list):
        return all(_is_number(inner) for inner in value)
    return isinstance(value, int | float) and not isinstance(value, bool)
