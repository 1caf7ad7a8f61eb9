"""Labels to class numbers 0 … C−1, or for other tasks to numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfew.data.decoded import Ints
from fedfew.data.errors import BadRows, DataError
from fedfew.data.raw import RawData
from fedfew.targets import check_order, detected, from_one_hot
from fedfew.tasks import TaskName


def read_targets(
    raw: RawData, classes: int | None, task: TaskName | None, bad: BadRows
) -> tuple[NDArray[Any], tuple[str, ...], TaskName, tuple[str, ...]]:
    """Targets (class numbers [N] or numbers [N, d]), the names of classes, targets or labels, the task, and what to note.

    task: what the labels are, if the user says so; else what they show.
    """
    rows = [label for label in raw.labels if isinstance(label, (list, tuple))]
    if rows and len({len(row) for row in rows}) > 1:
        raise DataError("the labels have different numbers of values per sample")
    found, notes = _shown(raw, bool(rows)) if task is None else (task, ())
    if found == "classification":
        if rows:
            numbers = from_one_hot(np.array(raw.labels))
            if numbers.ndim != 1:
                raise DataError(
                    f"labels of shape {list(numbers.shape)} cannot be used: one class or one-hot row per sample is needed"
                )
            raw = replace(raw, labels=numbers.tolist())
        y, names = number_labels(raw, classes, bad)
        return y, names, "classification", ()
    return *_numbers(raw, found, bad), found, notes


def _shown(raw: RawData, several: bool) -> tuple[TaskName, tuple[str, ...]]:
    """The task that the labels show, with a line about it where it is not a classification."""
    if raw.label_names is not None:
        return "classification", ()
    if several:
        try:
            rows = np.array([[np.nan if v is None else v for v in row] for row in raw.labels])
            if raw.array is not None:
                check_order([raw.array], [rows])
            found = detected([rows])
        except (ValueError, TypeError) as error:
            raise DataError(f"the labels cannot be read: {error}") from error
        what = "the labels are several numbers per sample"
    else:
        known = [label for label in raw.labels if not is_missing(label)]
        numbers = all(isinstance(label, (int, float)) and not isinstance(label, bool) for label in known)
        found = "regression" if known and numbers and not all(float(v).is_integer() for v in known) else "classification"
        what = "the labels are numbers that are not all whole"
    return found, () if found == "classification" else (f"{what}: the task is {found} (task=… says otherwise)",)


def _numbers(raw: RawData, task: TaskName, bad: BadRows) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """Targets [N, d], 0 in unusable rows, and their names."""
    width = max(len(label) if isinstance(label, (list, tuple)) else 1 for label in raw.labels)
    y = np.zeros((len(raw.labels), width), dtype=np.float32)
    for row, label in enumerate(raw.labels):
        values = label if isinstance(label, (list, tuple)) else [label]
        try:
            numbers = [np.nan if is_missing(value) else float(value) for value in values]
        except (TypeError, ValueError):
            raise DataError(f"{raw.where(row)}: the label is no number, but the task is {task}") from None
        if not np.isfinite(numbers).all():
            bad.add(row, f"{raw.where(row)}: the label is missing")
        elif task == "multi-label" and not set(numbers) <= {0.0, 1.0}:
            raise DataError(f"{raw.where(row)}: the labels must be 0 or 1, one per label, for task='multi-label'")
        else:
            y[row] = numbers
    return y, raw.target_names if len(raw.target_names) == width else tuple(map(str, range(width)))


def number_labels(raw: RawData, classes: int | None, bad: BadRows) -> tuple[Ints, tuple[str, ...]]:
    """Class numbers (−1 in unusable rows) and the class names.

    classes: how many there are, if labels are numbered from 0 but the files hold no class names.
    """
    labels = raw.labels
    numbered = raw.label_names is not None or classes is not None
    missing = {row for row, label in enumerate(labels) if is_missing(label, numbered)}
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
            raise DataError(
                f"{raw.where(row)}: the label is not a class: whole numbers or words are needed (task='regression' for numbers)"
            )
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
    if labels.dtype.kind == "f" and bool(np.isnan(labels).any()):
        raise DataError(f"{where}, row {int(np.isnan(labels).argmax()) + 1}: the label is missing")
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


def is_missing(label: Any, numbered: bool = False) -> bool:
    """numbered: −1 means "no label" among numbered classes, as on the Hugging Face hub."""
    return label is None or label == "" or label != label or (numbered and label == -1)


def _whole(labels: Sequence[Any]) -> bool:
    return all(
        label is None or label != label or (isinstance(label, (int, float)) and float(label).is_integer()) for label in labels
    )
