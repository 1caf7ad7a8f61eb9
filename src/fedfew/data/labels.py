"""Labels to class numbers 0 … C−1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfew.data.decoded import Ints
from fedfew.data.errors import BadRows, DataError
from fedfew.data.raw import RawData


def number_labels(raw: RawData, classes: int | None, bad: BadRows) -> tuple[Ints, tuple[str, ...]]:
    """Class numbers (−1 in unusable rows) and the class names.

    classes: how many there are, if labels are numbered from 0 but the files hold no class names.
    """
    labels = raw.labels
    numbered = raw.label_names is not None or classes is not None
    missing = {row for row, label in enumerate(labels) if _is_missing(label, numbered)}
    for row in sorted(missing):
        bad.add(row, f"{raw.where(row)}: the label is missing")
    names = raw.label_names or (tuple(map(str, range(classes))) if classes and _whole(labels) else None)
    y = np.full(len(labels), -1, dtype=np.int64)
    if names is not None and _whole(labels):
        for row, label in enumerate(labels):
            if row in missing:
                continue
            if 0 <= label < len(names):
                y[row] = int(label)
            else:
                bad.add(row, f"{raw.where(row)}: the label is outside 0 … {len(names) - 1}")
        return y, names
    for row, label in enumerate(labels):
        if row not in missing and isinstance(label, float) and not label.is_integer():
            raise DataError(f"{raw.where(row)}: the label is not a class: whole numbers or words are needed")
    present = dict.fromkeys(label for row, label in enumerate(labels) if row not in missing)
    spelled = {label: _name(label) for label in present}
    numeric = all(isinstance(label, (int, float)) for label in spelled)
    order = dict.fromkeys(spelled[k] for k in (sorted(spelled) if numeric else sorted(spelled, key=lambda k: spelled[k])))
    code = {word: i for i, word in enumerate(order)}
    for row, label in enumerate(labels):
        if row not in missing:
            y[row] = code[spelled[label]]
    return y, tuple(order)


def class_numbers(labels: NDArray[Any], class_names: Sequence[str] | None, where: str) -> Ints:
    """Labels as class numbers: whole numbers stay as they are, words are looked up in the class names."""
    if labels.dtype.kind in "iub" or (labels.dtype.kind == "f" and bool((labels == np.round(labels)).all())):
        return labels.astype(np.int64)
    if labels.dtype.kind not in "UST":
        raise DataError(f"{where}: labels must be whole numbers or words, not {labels.dtype}")
    if not class_names:
        raise DataError(
            f"{where}: the labels are words, and their class numbers are not known here: write whole numbers 0 … C−1, "
            "or put an array class_names with all classes in order into the file"
        )
    words = [label.decode() if isinstance(label, bytes) else str(label) for label in labels.tolist()]
    number = {name: i for i, name in enumerate(class_names)}
    for row, word in enumerate(words):
        if word not in number:
            known = ", ".join(class_names)
            raise DataError(f"{where}, row {row + 1}: the label is none of the {len(class_names)} classes ({known})")
    return np.array([number[word] for word in words], dtype=np.int64)


def _name(label: Any) -> str:
    """3 and 3.0 are the same class; True and False keep their names."""
    return str(int(label)) if isinstance(label, (int, float)) and not isinstance(label, bool) else str(label)


def _is_missing(label: Any, numbered: bool) -> bool:
    """numbered: −1 means "no label" among numbered classes, as on the Hugging Face hub."""
    return label is None or label == "" or label != label or (numbered and label == -1)


def _whole(labels: Sequence[Any]) -> bool:
    return all(
        label is None or label != label or (isinstance(label, (int, float)) and float(label).is_integer()) for label in labels
    )
