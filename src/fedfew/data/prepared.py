"""Federations in one file: reading needs only torch, numpy and safetensors, and maps the samples into memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch

from fedfew.data import tensorfile
from fedfew.data.errors import DataError
from fedfew.data.preprocessing import from_document, to_document
from fedfew.data.table_preprocessing import TablePreprocessing
from fedfew.federation import Federation, Preprocessing, Samples
from fedfew.targets import LabelType, check_task
from fedfew.tasks import IGNORED

FORMAT = 1
SUFFIX = ".fed"


def is_prepared(path: str | Path) -> bool:
    return str(path).endswith(SUFFIX)


def write(federation: Federation, path: str | Path) -> Path:
    """Write a federation to a file ending in ``.fed``, atomically. It holds nothing of clients that the federation has not."""
    target = Path(path)
    if not is_prepared(target):
        raise ValueError(f"the file of a prepared federation must end in {SUFFIX}, not {target.name!r}")
    tensors = {"ids": federation.ids}
    if federation.groups is not None:
        tensors["groups"] = federation.groups
    for name, samples in federation.splits.items():
        own = _own_rows(samples)
        tensors |= {f"{name}/{part}": getattr(own, part) for part in ("x", "y", "start", "count")}
    about = {
        "kind": "federation",
        "format": FORMAT,
        "name": federation.name,
        "classes": federation.classes,
        "task": federation.task,
        "class_names": [] if federation.task == "language-modelling" else list(federation.class_names),
        "label_type": federation.label_type,
        "vocabulary": federation.vocabulary,
        "pixels": federation.train.pixels,
        "client_names": list(federation.client_names),
        "about": dict(federation.about),
    }
    if federation.preprocessing is not None:
        tensors["preprocessing"] = tensorfile.text_tensor(to_document(_of(federation.client_names, federation.preprocessing)))
    tensorfile.write(target, tensors, about)
    return target


def _own_rows(samples: Samples) -> Samples:
    """The samples without rows that are none of the clients', which :meth:`Federation.take` leaves there."""
    used = samples.used
    if bool(used.all()):
        return samples
    return replace(samples, x=samples.x[used], y=samples.y[used], start=(used.cumsum(0) - 1)[samples.start])


def _of(names: Sequence[str], fitted: Preprocessing) -> Preprocessing:
    """The preprocessing without means and standard deviations of clients of other names."""
    if not isinstance(fitted, TablePreprocessing):
        return fitted
    return replace(fitted, clients=tuple(pair for pair in fitted.clients if pair[0] in names))


def read(path: str | Path) -> Federation:
    """The federation in a file; its samples stay on disk until they are used."""
    source = Path(path).expanduser()
    if not source.is_file():
        raise DataError(f"there is no prepared federation {source}; fedfew data prepare … -o {source.name} writes one")
    tensors, about = tensorfile.read(source)
    if about.get("kind") != "federation":
        raise DataError(f"{source} is not a prepared federation")
    if about["format"] != FORMAT:
        raise DataError(f"{source} has format {about['format']}, this version of fedfew reads {FORMAT}: prepare it again")
    try:
        federation = _federation(tensors, about)
        _check(federation)
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError, AttributeError) as error:
        raise DataError(f"{source} does not hold a valid federation: {error}") from error
    return federation


def _federation(tensors: dict[str, torch.Tensor], about: dict[str, Any]) -> Federation:
    fitted = tensors.get("preprocessing")
    return Federation(
        train=_samples(tensors, "train", about),
        test=_samples(tensors, "test", about),
        val=_samples(tensors, "val", about) if "val/x" in tensors else None,
        classes=about["classes"],
        ids=tensors["ids"].clone(),
        name=about["name"],
        groups=tensors["groups"].clone() if "groups" in tensors else None,
        class_names=tuple(about["class_names"]),
        vocabulary=about["vocabulary"],
        about=about["about"],
        client_names=tuple(about["client_names"]),
        preprocessing=None if fitted is None else from_document(tensorfile.from_text_tensor(fitted)),
        task=about["task"],
        label_type=about["label_type"],
    )


def _samples(tensors: dict[str, torch.Tensor], name: str, about: dict[str, Any]) -> Samples:
    count = tensors[f"{name}/count"].clone()
    start = tensors[f"{name}/start"].clone()
    return Samples(tensors[f"{name}/x"], tensors[f"{name}/y"], start, count, int(count.max()), about["pixels"])


def _check(federation: Federation) -> None:
    """Raise ValueError for values with which training would fail, or would use other samples than the client's."""
    if type(federation.classes) is not int or federation.classes < 1:
        raise ValueError(f"classes is {federation.classes!r}")
    check_task(federation.task)
    if federation.label_type not in (None, *get_args(LabelType)):
        raise ValueError(f"label_type is {federation.label_type!r}")
    whole = federation.task in ("classification", "language-modelling")  # targets are class numbers or token ids
    if federation.train.pixels not in ("symmetric", "unit"):
        raise ValueError(f"pixels is {federation.train.pixels!r}")
    clients = len(federation.ids)
    for name, samples in federation.splits.items():
        rows = len(samples.y)
        if (
            samples.y.shape != _target_shape(federation, samples)
            or len(samples.x) != rows
            or samples.x.shape[1:] != federation.train.x.shape[1:]
        ):
            raise ValueError(f"{name} has samples {list(samples.x.shape)} and labels {list(samples.y.shape)}")
        for part in (*([samples.y] if whole else []), samples.start, samples.count, federation.ids):
            if part.dtype != torch.int64:
                raise ValueError(f"{name} has numbers of type {part.dtype}, not int64")
        if samples.start.shape != (clients,) or samples.count.shape != (clients,):
            raise ValueError(f"{name} has {len(samples.start)} starts and {len(samples.count)} counts for {clients} clients")
        if int(samples.count.min()) < 1 or int(samples.start.min()) < 0 or int((samples.start + samples.count).max()) > rows:
            raise ValueError(f"starts and counts of {name} are outside its {rows} samples")
        if not whole:
            if samples.y.dtype != torch.float32 or not bool(samples.y.isfinite().all()):
                raise ValueError(f"targets of {name} are not all finite numbers of type float32")
        else:
            _check_whole(name, samples.y, federation)
        _check_samples(name, samples.x, federation.vocabulary)


def _target_shape(federation: Federation, samples: Samples) -> tuple[int, ...]:
    if federation.task == "language-modelling":
        return tuple(samples.x.shape)
    return (len(samples.y),) if federation.task == "classification" else (len(samples.y), federation.classes)


def _check_whole(name: str, y: torch.Tensor, federation: Federation) -> None:
    tokens = federation.task == "language-modelling"
    given = y[y != IGNORED] if tokens else y
    if len(given) and (int(given.min()) < 0 or int(given.max()) >= federation.classes):
        raise ValueError(f"{'targets' if tokens else 'labels'} of {name} are outside 0 … {federation.classes - 1}")


def _check_samples(name: str, x: torch.Tensor, vocabulary: int | None) -> None:
    if x.dtype == torch.float32:
        if not all(bool(chunk.isfinite().all()) for chunk in x.split(4096)):
            raise ValueError(f"{name} has values that are not finite")
    elif x.dtype in (torch.int16, torch.int32, torch.int64):
        if vocabulary is not None and (int(x.min()) < 0 or int(x.max()) >= vocabulary):
            raise ValueError(f"{name} has token ids outside 0 … {vocabulary - 1}")
    elif x.dtype != torch.uint8:
        raise ValueError(f"{name} has samples of type {x.dtype}")
