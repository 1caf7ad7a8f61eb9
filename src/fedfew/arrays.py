"""Arrays of samples and targets, one pair per client, checked and converted to the types that are stored."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedfew import targets
from fedfew.tasks import TaskName

MOST_CLASSES = 1_000_000  # by the largest label; a model has one output for each, and a client one count
Pairs = list[tuple[Tensor, Tensor]]  # (x, y) of each client


def check_pairs(split: str, given: Any) -> None:
    """Refuse what is not one pair (x, y) per client."""
    if isinstance(given, Mapping):
        raise TypeError(f"{split} must be a list of pairs (x, y), not a dict: give its values, and client_names=list({split})")
    if not hasattr(given, "__len__"):
        instead = "None (fedfew.data.load makes a test split)" if given is None else type(given).__name__
        raise TypeError(f"{split} must be a list of pairs (x, y), one per client, not {instead}")
    for i, pair in enumerate(given):
        if not hasattr(pair, "__len__") or isinstance(pair, Mapping | str) or len(pair) != 2:
            given_as = None if pair is None else type(pair).__name__
            raise TypeError(f"client {i}: {split} must be a pair (x, y), not {given_as} (fedfew.data.load takes data sets)")


def checked(split: str, inputs: Sequence[Any], ys: Sequence[Any], task: TaskName) -> Pairs:
    """The samples of a split as tensors of the stored types, or an error that names the client."""
    return [_checked(f"client {i}: {split}", x, y, task) for i, (x, y) in enumerate(zip(inputs, ys, strict=True))]


def _checked(where: str, x: Any, y: Any, task: TaskName) -> tuple[Tensor, Tensor]:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nothing is written to it
            x, y = (a.detach() if isinstance(a, Tensor) else torch.as_tensor(np.ascontiguousarray(a)) for a in (x, y))
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{where} samples cannot be read as arrays: {error}") from error
    if len(x.shape) == 0 or len(x) == 0:
        raise ValueError(f"{where} has no samples; every client needs at least one in each split")
    y = targets.stored(where, y, task, len(x))
    if x.is_floating_point():
        x = x.to(torch.float32)
        if not x.isfinite().all():
            bad = int((~x.flatten(1).isfinite().all(1) if x.ndim > 1 else ~x.isfinite()).nonzero()[0])
            raise ValueError(f"{where} sample {bad} contains NaN or infinite values")
    elif x.is_complex():
        raise ValueError(f"{where} samples are complex numbers ({x.dtype}): give their real and imaginary parts as features")
    elif x.dtype == torch.bool:
        x = x.to(torch.float32)
    elif x.dtype != torch.uint8:
        x = x.to(torch.int64)
    return x, y


def check_alike(parts: Mapping[str, Pairs]) -> None:
    """Refuse samples whose shape or type differs from that of client 0's training samples. parts: by split."""
    first = parts["train"][0][0]
    for split, pairs in parts.items():
        for i, (x, _) in enumerate(pairs):
            if x.shape[1:] != first.shape[1:] or x.dtype != first.dtype:
                raise ValueError(
                    f"client {i}: {split} samples are {list(x.shape[1:])} of {x.dtype}, "
                    f"but client 0's training samples are {list(first.shape[1:])} of {first.dtype}"
                )


def number_of_outputs(parts: Mapping[str, Pairs], task: TaskName, names: Sequence[str]) -> int:
    """Targets or labels per sample; of classes and tokens the number of names, without names the largest number + 1."""
    if task in ("regression", "multi-label"):
        return parts["train"][0][1].shape[1]
    if names:
        return len(names)
    ys = [y for pairs in parts.values() for _, y in pairs]
    classes, least = 1 + max(int(y.max()) for y in ys), min(int(y.min()) for y in ys)
    if classes > MOST_CLASSES:
        raise ValueError(
            f"labels run up to {classes - 1}, which would be {classes:,} classes: number them from 0, or for amounts give "
            "task='regression'"
        )
    if least > 0:
        warnings.warn(
            f"labels run from {least} to {classes - 1}, so that {least} of {classes} classes have no samples: number "
            f"them from 0, or give classes={classes} if that is meant",
            stacklevel=3,  # the line that calls from_arrays
        )
    return classes


def check_targets(parts: Mapping[str, Pairs], task: TaskName, outputs: int) -> None:
    """Refuse targets that do not fit this number of outputs."""
    for split, pairs in parts.items():
        for i, (x, y) in enumerate(pairs):
            if task == "language-modelling":
                if y.shape != x.shape or int(y.max()) >= outputs:
                    raise ValueError(
                        f"client {i}: {split} targets are {list(y.shape)} with token ids up to {int(y.max())}, but must have "
                        f"the shape of the samples, {list(x.shape)}, and be below {outputs}"
                    )
            elif task != "classification":
                if y.shape[1] != outputs:
                    raise ValueError(f"client {i}: {split} samples have {y.shape[1]} targets each, but {outputs} are needed")
            elif int(y.min()) < 0 or int(y.max()) >= outputs:
                raise ValueError(
                    f"client {i}: {split} labels run from {int(y.min())} to {int(y.max())}, "
                    f"but must lie in 0 … {outputs - 1} ({outputs} classes)"
                )
