"""Targets as they are given (class numbers, words, one-hot rows, numbers, several labels) as they are stored, and their task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfew.tasks import IGNORED, TaskName
from fedfew.util.spelling import counted

LISTED = 10  # classes in a message
Array = NDArray[Any]
LabelType = Literal["int", "bool", "str"]


def label_type(labels: Iterable[Any]) -> LabelType | None:
    """What labels are, so that predictions can be the same; whole numbers are "int". None: something else, or a mixture."""
    kinds = {type(label) for label in labels}
    if kinds == {bool}:
        return "bool"
    if kinds == {str}:
        return "str"
    return "int" if kinds and kinds <= {int, float} else None


def label_type_of_arrays(labels: Sequence[Array]) -> LabelType | None:
    """The same for labels in arrays."""
    flat = [y.reshape(-1) if y.dtype.kind == "O" else y.reshape(-1)[:1] for y in labels]  # other arrays are of one type
    return label_type(label for y in flat for label in y.tolist())


def check_task(task: str | None) -> None:
    """Refuse what is no task."""
    if task is not None and task not in get_args(TaskName):
        raise ValueError(f"task must be {', '.join(get_args(TaskName)[:-1])} or {get_args(TaskName)[-1]}, not {task!r}")


def check_task_of_files(task: str | None) -> None:
    """Refuse what is no task of samples with labels, which files hold."""
    check_task(task)
    if task == "language-modelling":
        raise ValueError(
            f"task is {task!r}, whose targets are the tokens themselves: give a file of texts and a tokenizer (--tokenizer "
            "FOLDER, fedfew.data.load(…, tokenizer=…)), a .fed file prepared from them, or make the federation with "
            "Federation.from_arrays"
        )


def from_one_hot(labels: Array) -> Array:
    """Rows of zeros with a single one as class numbers; anything else unchanged."""
    return labels.argmax(axis=1) if _is_one_hot(labels) else labels


def detected(targets: Sequence[Array]) -> TaskName:
    """The task of the clients' targets, where it is not given: what they cannot be otherwise.

    Numbers that are not all whole are a regression; rows of 0 and 1 that are not all one-hot are several labels per sample. All
    else is a classification, as are whole numbers, which may be classes or amounts: for amounts the task must be given.
    """
    if all(y.dtype.kind in "biuf" and y.ndim == 2 and y.shape[1] > 1 for y in targets):
        if all(_is_one_hot(y) for y in targets):
            return "classification"
        if all(_is_binary(y) for y in targets):
            return "multi-label"
        if all(_is_whole(y) for y in targets):
            raise ValueError(
                f"targets are {targets[0].shape[1]} whole numbers per sample, which may be amounts or classes: give "
                "task='regression', or one label per sample"
            )
        return "regression"
    numbers = [y for y in targets if y.dtype.kind == "f" and (y.ndim == 1 or y.ndim == 2)]
    return "regression" if len(numbers) == len(targets) and not all(_is_whole(y) for y in numbers) else "classification"


def check_order(samples: Iterable[Any], targets: Sequence[Array]) -> None:
    """Refuse clients of whom each sample is a single whole number and each target several: they were given as (y, x)."""
    if any(y.ndim != 2 or y.shape[1] < 2 for y in targets) or all(_is_one_hot(y) for y in targets):
        return
    xs = [as_array(x) for x in samples]
    if all(x.ndim == 1 and x.dtype.kind in "biuf" and _is_whole(x) for x in xs):
        raise ValueError(
            f"y is {targets[0].shape[1]} numbers per sample and x one whole number: the order is (x, y), samples before labels. "
            f"If it is meant, give task='regression' or 'multi-label', or give x as [{len(xs[0])}, 1]"
        )


def stored(where: str, y: Tensor, task: TaskName, samples: int) -> Tensor:
    """The targets of one client as they are stored: int64 [N] or float32 [N, d]. where: names the client in messages."""
    if task == "classification":
        if y.ndim != 1 or len(y) != samples:
            raise ValueError(f"{where} has {samples} samples but labels of shape {list(y.shape)}; one label per sample is needed")
        if y.is_floating_point() and bool(y.isnan().any()):
            raise ValueError(f"{where} label of sample {int(y.isnan().nonzero()[0])} is missing (NaN): leave the sample out")
        if y.is_floating_point() and not bool((y == y.round()).all()):
            raise ValueError(f"{where} labels must be whole numbers; for numbers of any kind give task='regression'")
        return y.to(torch.int64)
    if task == "language-modelling":
        return _tokens(where, y, samples)
    if y.ndim not in (1, 2) or len(y) != samples or (y.ndim == 2 and y.shape[1] == 0):
        wanted = f"[{samples}] or [{samples}, d]"
        raise ValueError(f"{where} has {samples} samples but targets of shape {list(y.shape)}; {wanted} is needed")
    y = (y if y.ndim == 2 else y[:, None]).to(torch.float32)
    if not bool(y.isfinite().all()):
        raise ValueError(f"{where} target of sample {int((~y.isfinite().all(1)).nonzero()[0])} is NaN or infinite")
    if task == "multi-label" and not bool(((y == 0) | (y == 1)).all()):
        raise ValueError(f"{where} targets must be 0 or 1, one column per label, for task='multi-label'")
    return y


def check_width(y: Tensor, outputs: int) -> None:
    """Refuse targets ``[N, d]`` of another number than the models' outputs: losses would pair each with all of them."""
    if y.shape[1] != outputs:
        raise ValueError(
            f"y has {y.shape[1]} targets or labels per sample, but the models have {outputs} outputs: they must agree"
        )


def _tokens(where: str, y: Tensor, samples: int) -> Tensor:
    if y.ndim != 2 or len(y) != samples or y.shape[1] < 2 or y.is_floating_point():
        raise ValueError(
            f"{where} has {samples} samples but targets of shape {list(y.shape)} of {str(y.dtype).removeprefix('torch.')}; token "
            f"ids [{samples}, tokens] are needed, {IGNORED} where nothing is to be predicted"
        )
    y = y.to(torch.int64)
    if not bool(((y >= 0) | (y == IGNORED)).all()):
        raise ValueError(f"{where} targets must be token ids, from 0, or {IGNORED} where nothing is to be predicted")
    if bool((y[:, 1:] == IGNORED).all()):
        raise ValueError(f"{where} has no token to predict: all targets but the first of each sequence are {IGNORED}")
    return y


def as_array(y: Any) -> Array:
    array = y.numpy(force=True) if isinstance(y, Tensor) else np.asarray(y)
    return np.array(y, dtype=object) if array.dtype.kind == "U" and isinstance(y, list | tuple) else array  # NaN is no word


def numbered(labels: list[Array], class_names: Sequence[str] | None, clients: int) -> tuple[list[Array], Sequence[str] | None]:
    """One-hot labels and words as class numbers, and the class names. clients: how many, whose training labels come first."""
    labels = [from_one_hot(y) for y in labels]
    if not any(y.dtype.kind in "UTO" for y in labels):
        return labels, class_names
    for i, y in enumerate(labels):
        if y.dtype.kind in "biuf" and not class_names:
            where = f"client {i % clients}: {'train' if i < clients else 'test'}"
            raise ValueError(f"{where} labels are numbers, but those of others are words: give words to all, or numbers to all")
    words = [["" if word is None or word != word else str(word) for word in y.reshape(-1).tolist()] for y in labels]
    class_names = class_names or sorted({word for client in words for word in client if word})
    number = {name: i for i, name in enumerate(class_names)}
    for i, client in enumerate(words):
        if not all(word in number for word in client):
            where = f"client {i % clients}: {'train' if i < clients else 'test'}"
            raise ValueError(f"{where} labels contain gaps, or words that are not in class_names ({', '.join(class_names)})")
    return [np.array([number[word] for word in client], dtype=np.int64) for client in words], class_names


def not_trained(class_names: Sequence[str], train: Array, test: Array) -> list[str]:
    """A line that names the classes that no training sample has, given the number of samples per class; none without any."""
    only = [f"{class_names[c]} ({counted(int(test[c]), 'sample')})" for c in np.flatnonzero((train == 0) & (test > 0)).tolist()]
    more = f" and {len(only) - LISTED} more" if len(only) > LISTED else ""
    return [f"classes that only test data have, which no model can learn: {', '.join(only[:LISTED])}{more}"] if only else []


def _is_binary(y: Array) -> bool:
    return bool(((y == 0) | (y == 1)).all())


def _is_one_hot(y: Array) -> bool:
    if y.ndim != 2 or y.shape[1] < 2 or y.dtype.kind not in "biuf":
        return False
    return _is_binary(y) and bool((y.sum(axis=1) == 1).all())


def _is_whole(y: Array) -> bool:
    """Are all numbers whole, but for those that are missing?"""
    known = y[np.isfinite(y)] if y.dtype.kind == "f" else y
    return bool((known == np.round(known)).all()) if y.dtype.kind == "f" else True
