"""Federations in one file: reading needs only torch, numpy and safetensors, and maps the samples into memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedfew.data import tensorfile
from fedfew.data.errors import DataError
from fedfew.federation import Federation, Samples

FORMAT = 1
SUFFIX = ".fed"


def is_prepared(path: str | Path) -> bool:
    return str(path).endswith(SUFFIX)


def write(federation: Federation, path: str | Path) -> Path:
    """Write a federation to a file ending in ``.fed``, atomically."""
    target = Path(path)
    if not is_prepared(target):
        raise ValueError(f"the file of a prepared federation must end in {SUFFIX}, not {target.name!r}")
    splits = {"train": federation.train, "test": federation.test, "val": federation.val}
    tensors = {"ids": federation.ids}
    if federation.groups is not None:
        tensors["groups"] = federation.groups
    for name, samples in splits.items():
        if samples is not None:
            tensors |= {f"{name}/{part}": getattr(samples, part) for part in ("x", "y", "start", "count")}
    about = {
        "kind": "federation",
        "format": FORMAT,
        "name": federation.name,
        "classes": federation.classes,
        "class_names": list(federation.class_names),
        "vocabulary": federation.vocabulary,
        "pixels": federation.train.pixels,
        "about": dict(federation.about),
    }
    tensorfile.write(target, tensors, about)
    return target


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
    )


def _samples(tensors: dict[str, torch.Tensor], name: str, about: dict[str, Any]) -> Samples:
    count = tensors[f"{name}/count"].clone()
    samples = Samples(
        x=tensors[f"{name}/x"],
        y=tensors[f"{name}/y"],
        start=tensors[f"{name}/start"].clone(),
        count=count,
        longest=int(count.max()),
    )
    return replace(samples, pixels=about["pixels"])
