"""Decoded data by name or path: from the cache if it is there, with the defaults that the data set brings along."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedfew.data import cache, finding, objects
from fedfew.data.decode import decode
from fedfew.data.decoded import DecodedData, Ints
from fedfew.data.embedded import digit_data
from fedfew.data.errors import DataError, OnBad
from fedfew.data.finding import Found
from fedfew.data.raw import ColumnChoice
from fedfew.data.sources import Source
from fedfew.data.tokens import Tokens
from fedfew.federation import Pixels
from fedfew.imaging.decoding import Size
from fedfew.tasks import TaskName

CLIENTS = 20
PARTITION = "dirichlet:0.5"


@dataclass(frozen=True)
class Defaults:
    """The settings of a data set that apply unless the user gives others."""

    name: str
    clients: int | None = CLIENTS
    partition: str = PARTITION
    group: str | None = None
    pixels: Pixels = "symmetric"
    keep_split: bool = False  # the data's own test split stays the test split
    source: Source | None = None

    @classmethod
    def of(cls, found: Found) -> Defaults:
        source = found.source
        if source is None:
            partition = PARTITION if found.client is None else f"by:{found.client}"
            return cls(found.name, CLIENTS if found.client is None else None, partition, keep_split=True)
        return cls(found.name, source.clients, source.partition, source.group, source.pixels, source=source)

    def notes(self, data: DecodedData) -> list[str]:
        """What is missing from the public data set of that name."""
        source = self.source
        notes = []
        if source and source.rows and data.total != source.rows:
            notes.append(f"{data.total:,} of the {source.rows:,} rows of the public data set")
        if source and len(data.class_names) != source.classes:
            notes.append(f"{len(data.class_names)} of the {source.classes} classes of the public data set")
        return notes


def read(
    data: Any,
    choice: ColumnChoice,
    *,
    data_dir: str | Path | None,
    size: int | Size | None,
    sample: int | None,
    seed: int,
    on_bad: OnBad,
    task: TaskName | None = None,
    tokens: Tokens | None = None,
) -> tuple[DecodedData, Defaults]:
    """The decoded rows and the data set's defaults.

    data: a name, a path or an object. sample: only so many rows, drawn by the seed. task: what the labels are, if given.
    tokens: encodes texts, if given.
    """
    if isinstance(data, str) and data == "digits":
        if task not in (None, "classification"):
            raise ValueError(f"the task is {task!r}, by itself or by the loss, but the digits have classes: leave it out")
        choice.refuse("the digits have")
        digits = digit_data()
        chosen = digits if sample is None else digits.sampled(_sampled_rows(digits.total, sample, seed))
        return chosen, Defaults("digits", partition="rotation")
    by_name = isinstance(data, (str, Path))
    found = finding.find(data, data_dir, choice, {"size": size}) if by_name else objects.find(data, choice)
    decoded = _cached_or_decoded(found, _image_size(size, found.source), sample, seed, on_bad, task, tokens)
    if decoded.skipped and on_bad == "raise":
        raise DataError(f'{decoded.skipped[0]} (on_bad="skip" leaves such rows out)')
    return decoded, Defaults.of(found)


def _cached_or_decoded(
    found: Found, size: Size | None, sample: int | None, seed: int, on_bad: OnBad, task: TaskName | None, tokens: Tokens | None
) -> DecodedData:
    key = found.key if task is None else cache.hash_of([found.key, task])
    if tokens is not None:
        key = cache.hash_of([key, tokens.tokenizer, tokens.padding, tokens.length])

    def decoded() -> DecodedData:
        raw = found.read()
        only = None if sample is None else _sampled_rows(len(raw), sample, seed)
        classes = found.source.classes if found.source else None
        return decode(
            raw, found.key, size=size, classes=classes, on_bad=on_bad, only=only, name=found.name, task=task, tokens=tokens
        )

    if not found.cached:
        return decoded()
    if sample is None:
        return cache.get_or_make(key, found.name, decoded)
    whole = cache.stored(key, found.name)
    if whole is None:  # a sample is decoded quickly, and is not stored in the place of the whole
        return decoded()
    return whole.sampled(_sampled_rows(whole.total, sample, seed))


def _image_size(size: int | Size | None, source: Source | None) -> Size | None:
    own = source.size if source else None
    full = own if size is None else (own[0] if own else 0, size, size) if isinstance(size, int) else size
    if full is not None and (len(full) != 3 or full[0] not in (0, 1, 3) or min(full[1:]) < 1):
        raise ValueError(f"size must be a number of pixels or (1 or 3 channels, height, width), not {size}")
    return full


def _sampled_rows(total: int, sample: int, seed: int) -> Ints:
    """Row numbers of a sample."""
    if sample > total:
        raise ValueError(f"sample is {sample}, but there are only {total} rows")
    return np.sort(np.random.default_rng([seed, 1]).choice(total, sample, replace=False))
