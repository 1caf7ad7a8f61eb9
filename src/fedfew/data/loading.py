"""The entry point: :func:`load`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedfew.data import prepared, reading, split
from fedfew.data.assemble import VocabularyFrom, assemble
from fedfew.data.decoded import DecodedData
from fedfew.data.errors import DataError, OnBad, SkippedWarning
from fedfew.data.images import Size
from fedfew.data.partition import Indices
from fedfew.data.partition_spec import PartitionSpec
from fedfew.data.raw import ColumnChoice
from fedfew.federation import Federation, Pixels


def load(
    name_or_path: str | Path,
    *,
    clients: int | None = None,
    partition: str | None = None,
    data_dir: str | Path | None = None,
    seed: int = 0,
    sample: int | None = None,
    test_share: float = 0.25,
    val_share: float = 0.0,
    stratify: bool = False,
    group: str | None = None,
    at_least: int | None = None,
    input: str | Sequence[str] | None = None,
    label: str | None = None,
    size: int | Size | None = None,
    pixels: Pixels | None = None,
    vocabulary_from: VocabularyFrom = "train",
    on_bad: OnBad = "raise",
) -> Federation:
    """A data set partitioned among clients, with each client's samples split into training and test (and validation).

    name_or_path: a name from :func:`fedfew.data.names`; a parquet file or a folder of them, a folder with one subfolder of images
        per class, a CSV, an ``.npz``; a federation written by ``fedfew data prepare``; or ``hub:owner/name``.
    clients: how many. Default: the paper's number, 20 for other data, and one per value for ``by:column``.
    partition: "iid", "dirichlet:0.5", "dirichlet-published:0.1", "pathological:2", "quantity:0.5", "by:column", "rotation",
        "label-permutation", or one of the former and one of the last two joined by "+". See ``docs/data.md``.
    data_dir: searched before any network. Default: ``$FEDFEW_DATA``.
    sample: keep only so many rows, drawn by the seed: for quick tries.
    test_share, val_share: fractions of each client's samples. stratify: the same fraction of every class.
    group: a column (a patient, a lesion) whose rows stay on one side of the split and, unless partitioned by a column, at one
        client; "none": no grouping, even if it is the data set's default.
    at_least: samples that every client must have for a random partition to be accepted. Default: what the split needs, or the
        partition's own rule.
    input, label: columns, if they are not recognised by their names. size: images are resized to so many pixels per side, or to
        (channels, height, width). pixels: "symmetric" gives models values in −1 … 1, "unit" in 0 … 1.
    vocabulary_from: texts that the vocabulary is built from: training texts, or "all" as in the published experiments.
    on_bad: for rows that cannot be used, "raise" reports the first one, "skip" leaves them out and reports how many.
    """
    _check_settings(on_bad, vocabulary_from, test_share, val_share, stratify, group)
    if prepared.is_prepared(name_or_path):
        given = {"clients": clients, "partition": partition, "sample": sample, "group": group, "label": label, "input": input}
        return _load_prepared(name_or_path, given)
    spec = PartitionSpec.parse(partition) if partition is not None else None
    choice = ColumnChoice(
        input=input if input is None or isinstance(input, str) else tuple(input),
        label=None if label is None else (label,),
        excluded=tuple(column for column in (spec and spec.column, group) if column and column != "none"),
    )
    name = str(name_or_path)
    folder = None if data_dir is None else str(data_dir)
    data, defaults = reading.read(name, choice, data_dir=folder, size=size, sample=sample, seed=seed, on_bad=on_bad)
    _check_classes(data, name)
    spec = spec or PartitionSpec.parse(defaults.partition)
    if clients is None and (partition is None or spec.column is None):
        clients = defaults.clients
    if group is None and not stratify:
        group = defaults.group
    group = None if group == "none" else group
    units = _groups(data, group)
    rng = np.random.default_rng(seed)
    parts = spec.partition(data, clients, rng, at_least=at_least, fewest=3 if val_share else 2, units=units)
    cutter = split.Cutter(test_share, val_share, data.y if stratify else None, units, group or "")
    cuts, too_small = split.cut_clients(parts, cutter, on_bad)
    skipped = [*data.skipped, *too_small]
    if skipped:
        more = f" and {len(skipped) - 3} more" if len(skipped) > 3 else ""
        warnings.warn(f"{name}: left out {len(skipped)}: {'; '.join(skipped[:3])}{more}", SkippedWarning, stacklevel=2)
    about = {
        "source": defaults.name,
        "source_hash": data.source,
        "partition": str(spec),
        "clients": len(cuts),
        "seed": seed,
        "sample": sample,
        "rows": len(data),
        "test_share": test_share,
        "val_share": val_share,
        "stratify": stratify,
        "group": group,
        "vocabulary_from": None if isinstance(data.x, np.ndarray) else vocabulary_from,
        "skipped": skipped,
        "notes": [*data.notes, *defaults.notes(data)],
    }
    return assemble(
        data,
        cuts,
        spec,
        name=f"{defaults.name}-{str(spec).replace(':', '-')}",
        seed=seed,
        pixels=pixels or defaults.pixels,
        vocabulary_from=vocabulary_from,
        about=about,
    )


def _check_settings(
    on_bad: str, vocabulary_from: str, test_share: float, val_share: float, stratify: bool, group: str | None
) -> None:
    if on_bad not in ("raise", "skip"):
        raise ValueError(f'on_bad must be "raise" or "skip", not {on_bad!r}')
    if vocabulary_from not in ("train", "all"):
        raise ValueError(f'vocabulary_from must be "train" or "all", not {vocabulary_from!r}')
    split.check_shares(test_share, val_share)
    if stratify and group not in (None, "none"):
        raise ValueError("stratify and group exclude each other: whole groups cannot be split class by class")


def _load_prepared(path: str | Path, given: Mapping[str, object]) -> Federation:
    for setting, value in given.items():
        if value is not None:
            raise ValueError(f"{setting}={value!r}: {path} is a prepared federation, partitioned and split already")
    return prepared.read(path)


def _check_classes(data: DecodedData, name: str) -> None:
    if len(np.unique(data.y)) < 2:
        raise DataError(f"all {len(data)} rows of {name} have the same label, two or more are needed (label=… names a column)")


def _groups(data: DecodedData, group: str | None) -> Indices | None:
    if group is None:
        return None
    if group not in data.columns:
        raise DataError(f"there is no column {group!r} to group by (columns: {', '.join(data.columns) or 'none'})")
    return data.columns[group].codes
