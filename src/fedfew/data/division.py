"""Which rows each client trains and is tested on: a partition among clients, then a split per client."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedfew.data import reading, split
from fedfew.data.decoded import DecodedData
from fedfew.data.errors import DataError, OnBad
from fedfew.data.partition import Indices
from fedfew.data.partition_spec import PartitionSpec
from fedfew.util.spelling import counted

TEST_SHARE = 0.25


@dataclass(frozen=True)
class DivisionSettings:
    """The settings of :func:`fedfew.data.load` that decide which rows a client has, apart from the partition."""

    clients: int | None
    seed: int
    test_share: float | None
    val_share: float
    stratify: bool
    group: str | None
    at_least: int | None
    on_bad: OnBad

    def __post_init__(self) -> None:
        if self.on_bad not in ("raise", "skip"):
            raise ValueError(f'on_bad must be "raise" or "skip", not {self.on_bad!r}')
        split.check_shares(self.share, self.val_share)
        if self.stratify and self.group not in (None, "none"):
            raise ValueError("stratify and group exclude each other: whole groups cannot be split class by class")

    @property
    def share(self) -> float:
        return TEST_SHARE if self.test_share is None else self.test_share


@dataclass(frozen=True)
class Division:
    """One cut and name per client, and the decisions behind them."""

    cuts: list[split.Cut]
    names: list[str]
    spec: PartitionSpec
    group: str | None  # the column whose rows stay together
    units: Indices | None  # its values, numbered
    splits: NDArray[np.int8] | None  # the source's own split, where it is kept
    skipped: list[str]  # why clients were left out
    notes: list[str]
    client_column: str | None = None  # whose values are the names


def divide(
    data: DecodedData, defaults: reading.Defaults, spec: PartitionSpec | None, wanted: DivisionSettings, language: bool
) -> Division:
    """The rows of each client; what is not given, the data set's defaults decide. language: the task is language modelling."""
    chosen, clients, notes = _chosen_partition(spec, wanted.clients, data, defaults, language)
    group = _chosen_group(wanted, defaults)
    units = _groups(data, group)
    rng = np.random.default_rng(wanted.seed)
    fewest = 3 if wanted.val_share else 2
    parts = chosen.partition(data, clients, rng, at_least=wanted.at_least, fewest=fewest, units=units)
    if (least := min(map(len, parts))) < (wanted.at_least or 0):
        raise ValueError(
            f"partition {chosen}: at_least is {wanted.at_least}, but a client has {counted(least, 'sample')}: "
            "lower it, or take fewer clients"
        )
    splits = data.splits if wanted.test_share is None and defaults.keep_split else None
    labels = data.y if wanted.stratify else None
    cutter = split.Cutter(wanted.share, wanted.val_share, labels, units, group or "", splits)
    cuts, names, skipped = split.cut_clients(parts, chosen.client_names(data, parts), cutter, wanted.on_bad)
    return Division(cuts, names, chosen, group, units, splits, skipped, notes, chosen.naming_column(data, parts))


def _chosen_partition(
    spec: PartitionSpec | None, clients: int | None, data: DecodedData, defaults: reading.Defaults, language: bool
) -> tuple[PartitionSpec, int | None, list[str]]:
    """The partition and the number of clients, the data set's own where they are not given, and notes."""
    if clients is None and (spec is None or spec.column is None):
        clients = defaults.clients if spec is None else defaults.clients or reading.CLIENTS
    if spec is None and language and defaults.partition == reading.PARTITION and len(np.unique(data.y, axis=0)) < 2:
        return PartitionSpec.parse("iid"), clients, ["partition iid: these texts have no labels that they could be divided by"]
    spec = spec or PartitionSpec.parse(defaults.partition)
    if language and spec.shift == "label-permutation":
        raise ValueError(f"partition {spec} permutes labels, which language modelling does not use")
    return spec, clients, []


def _chosen_group(wanted: DivisionSettings, defaults: reading.Defaults) -> str | None:
    """The column to group by, the data set's own where none is given; None: no grouping."""
    group = defaults.group if wanted.group is None and not wanted.stratify else wanted.group
    return None if group == "none" else group


def _groups(data: DecodedData, group: str | None) -> Indices | None:
    if group is None:
        return None
    if group not in data.columns:
        raise DataError(f"there is no column {group!r} to group by (columns: {data.column_names})")
    return data.columns[group].codes
