"""From rows as stored in files to arrays: images decoded, texts split into words, labels numbered."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfew.data import images, text
from fedfew.data.decoded import DecodedData, Features, Ints, Words
from fedfew.data.errors import BadRows, DataError, OnBad
from fedfew.data.labels import is_missing, read_targets
from fedfew.data.raw import RawData
from fedfew.data.tokens import Tokens
from fedfew.imaging.decoding import Size
from fedfew.targets import label_type
from fedfew.tasks import TaskName


def decode(
    raw: RawData,
    source: str,
    *,
    size: Size | None = None,
    classes: int | None = None,
    on_bad: OnBad = "raise",
    only: Ints | None = None,
    name: str = "rows",
    task: TaskName | None = None,
    tokens: Tokens | None = None,
) -> DecodedData:
    """All rows, or only those with the given row numbers, as arrays.

    size: images are resized to it; if not given, all images must have the size of the first.
    classes: how many there are, if labels are numbered from 0 but the files hold no class names.
    task: what the labels are; if not given, what they show. tokens: encodes texts; if not given, these are split into words.
    """
    if len(raw) == 0:
        raise DataError(f"{name} has no rows")
    bad = BadRows(on_bad)
    y, class_names, task, noted = read_targets(raw, classes, task, bad)
    wanted = np.arange(len(raw)) if only is None else np.sort(only)
    rows = np.array([row for row in wanted.tolist() if row not in bad.found], dtype=np.int64)
    notes: tuple[str, ...] = raw.notes + noted
    x: NDArray[Any] | Words | Features
    details: dict[str, Any] = {}
    if raw.kind == "image":
        decoded = images.decode_images(raw, rows, size, bad, name)
        x, rows, notes = decoded.pixels, decoded.rows, notes + decoded.notes
        details = {"size": list(decoded.size), "resized": size is not None, "depth": decoded.depth}
    elif raw.kind == "text":
        texts, rows = _texts(raw, rows, bad)
        if tokens is None:
            x, long = text.split_texts(texts), sum(len(words) > text.LONGEST for words in texts)
            cut_at = f"{text.LONGEST:,} characters"
        else:
            x, long = tokens.encode(texts)
            details["tokens"], cut_at = True, f"{tokens.length:,} tokens (max_length)"
        if long:
            notes += (f"{long} texts were cut at {cut_at}",)
    elif raw.kind == "table":
        x, rows = _features(raw, rows, bad)
    else:
        x, rows = _array(raw, rows, bad)
    if raw.used:
        details["columns"] = {"used": list(raw.used), "left_out": raw.left_out}
    if task != "classification":
        details["task"] = task
    elif raw.label_names is None and (kind := label_type(y for y in raw.labels if not is_missing(y))) is not None:
        details["label_type"] = kind
    if len(rows) == 0:
        raise DataError(f"no row of {name} can be used: {'; '.join(bad.messages[:3])}")
    columns = {name: column.take(rows) for name, column in raw.columns.items()}
    splits = None if raw.splits is None else raw.splits[rows]
    return DecodedData(x, y[rows], class_names, columns, rows, len(raw), source, bad.messages, notes, splits, details)


def _texts(raw: RawData, rows: Ints, bad: BadRows) -> tuple[list[str], Ints]:
    assert raw.texts is not None
    good = []
    for row in rows.tolist():
        if raw.texts[row] is None:
            bad.add(row, f"{raw.where(row)}: the text is missing")
        else:
            good.append(row)
    return [raw.texts[row] or "" for row in good], np.array(good, dtype=np.int64)


def _features(raw: RawData, rows: Ints, bad: BadRows) -> tuple[Features, Ints]:
    assert raw.features is not None
    infinite: NDArray[np.bool_] = np.asarray(np.isinf(raw.features.numbers).any(axis=1))
    for row in rows[infinite[rows]].tolist():
        bad.add(row, f"{raw.where(row)}: a value is infinite")
    rows = rows[~infinite[rows]]
    return raw.features.take(rows), rows


def _array(raw: RawData, rows: Ints, bad: BadRows) -> tuple[NDArray[Any], Ints]:
    assert raw.array is not None
    x = raw.array
    if x.dtype.kind in "ui" and x.dtype != np.uint8:
        x = x.astype(np.int64)
    elif x.dtype.kind in "bf":
        with np.errstate(over="ignore"):  # reported below
            x = x.astype(np.float32)
        finite = np.isfinite(x.reshape(len(x), -1)).all(axis=1)
        for row in rows[~finite[rows]].tolist():
            bad.add(row, f"{raw.where(row)}: a value is missing or not finite")
        rows = rows[finite[rows]]
    elif x.dtype != np.uint8:
        raise DataError(f"samples of type {x.dtype} cannot be used: numbers are needed")
    return x[rows], rows
