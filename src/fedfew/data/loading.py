"""The entry point: :func:`load`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedfew.data import notes, prepared, reading
from fedfew.data.assemble import VocabularyFrom, assemble
from fedfew.data.decoded import DecodedData, Features, Words
from fedfew.data.division import Division, DivisionSettings, divide
from fedfew.data.errors import DataError, OnBad, SkippedWarning
from fedfew.data.given import check
from fedfew.data.partition_spec import PartitionSpec
from fedfew.data.raw import ColumnChoice
from fedfew.data.table_preprocessing import Scale
from fedfew.data.tokens import Tokens, for_language_modelling, with_labels
from fedfew.federation import Federation, Pixels
from fedfew.imaging.decoding import Size
from fedfew.targets import check_task, check_task_of_files
from fedfew.tasks import TaskName

log = logging.getLogger("fedfew.data")  # the commands print notes themselves


def load(
    data: Any,
    *,
    clients: int | None = None,
    partition: str | None = None,
    data_dir: str | Path | None = None,
    seed: int = 0,
    sample: int | None = None,
    test_share: float | None = None,
    val_share: float = 0.0,
    stratify: bool = False,
    group: str | None = None,
    at_least: int | None = None,
    input: str | Sequence[str] | None = None,
    label: str | Sequence[str] | None = None,
    client: str | None = None,
    size: int | Size | None = None,
    pixels: Pixels | None = None,
    scale: Scale = "client",
    vocabulary_from: VocabularyFrom = "train",
    on_bad: OnBad = "raise",
    task: TaskName | None = None,
    tokenizer: Any = None,
    max_length: int | None = None,
) -> Federation:
    """A data set partitioned among clients, with each client's samples split into training and test (and validation).

    data: a name from :func:`fedfew.data.names`; a path (parquet, CSV, ``.npz``, a folder of images, a federation written by
        ``fedfew data prepare``, …); ``hub:owner/name``; or an object: a pandas or polars data frame, a torch or Hugging Face data
        set, arrays ``(x, y)``, or a list or dict of these with one entry per client. See ``docs/data.md``.
    clients: how many. Default: the paper's number, 20 for other data, and one per value for ``by:column``.
    partition: "iid", "dirichlet:0.5", "dirichlet-published:0.1", "pathological:2", "quantity:0.5", "by:column", "rotation",
        "label-permutation", or one of the former and one of the last two joined by "+". See ``docs/data.md``.
    data_dir: searched before any network. Default: ``$FEDFEW_DATA``.
    sample: keep only so many rows, drawn by the seed: for quick tries.
    test_share, val_share: fractions of each client's samples. test_share=None: the data's own test split if it has one, else
        0.25; for data sets known by name, as in the paper, all splits are merged and 0.25 is used. stratify: the same fraction of
        every class.
    group: a column (a patient, a lesion) whose rows stay on one side of the split and, unless partitioned by a column, at one
        client; "none": no grouping, even if it is the data set's default.
    at_least: samples that every client must have for a random partition to be accepted. Default: what the split needs, or the
        partition's own rule.
    client: the column that names the client of each row; the same as partition="by:column".
    input, label: columns, if they are not recognised by their names; several labels per sample, or several targets, are a list of
        columns. size: images are resized to so many pixels per side, or to (channels, height, width). pixels: "symmetric" gives
        models values in −1 … 1, "unit" in 0 … 1.
    scale: numbers of tables are standardised by the mean and standard deviation of each client's training rows ("client"), of all
        clients' ("global"), or not at all ("none").
    vocabulary_from: texts that the vocabulary is built from: training texts, or "all" as in the published experiments.
    on_bad: for rows that cannot be used, "raise" reports the first one, "skip" leaves them out and reports how many.
    task: what the labels are: "classification", "regression" (numbers) or "multi-label" (0 or 1 per label). If not given, numbers
        that are not all whole are a regression, rows of 0 and 1 that are not one-hot are several labels, all else are classes.
        With a tokenizer also "language-modelling": targets are the tokens of the texts; labels only serve the partition.
    tokenizer: for texts and models of Hugging Face: a fast tokenizer, its folder or file, or its name on the hub. Texts
        become its token ids, padded to the right and truncated to max_length (200). Padding is hidden from the model, see
        docs/adapters.md.
    """
    given = dict(locals())
    wanted = DivisionSettings(clients, seed, test_share, val_share, stratify, group, at_least, on_bad)
    check(given)
    check_task(task)
    if isinstance(data, (str, Path)) and prepared.is_prepared(data):
        return _load_prepared(data, task, given)
    tokens = _tokens(tokenizer, max_length)
    language = tokens is not None and task == "language-modelling"
    if language:
        data, task = with_labels(data), None
    check_task_of_files(task)
    spec = _partition_spec(partition, client)
    choice = replace(column_choice(partition, client, group, label, input), unlabelled=language)
    read, defaults = reading.read(
        data, choice, data_dir=data_dir, size=size, sample=sample, seed=seed, on_bad=on_bad, task=task, tokens=tokens
    )
    _check_read(read, defaults.name, tokens, language, stratify)
    division = divide(read, defaults, spec, wanted, language)
    _warn_of_skipped(defaults.name, [*read.skipped, *division.skipped])
    about = _about(read, division, defaults, wanted, tokens, sample, vocabulary_from, scale)
    about["notes"] = notes.of(read, division, defaults, tokens, scale, partition_given=spec is not None)
    about["notes"] += notes.without_effect(read, size, pixels, scale, vocabulary_from)
    for note in about["notes"]:
        log.warning(note)
    name = f"{defaults.name}-{str(division.spec).replace(':', '-')}"
    federation = assemble(read, division, name, seed, pixels or defaults.pixels, scale, vocabulary_from, about, tokens)
    return federation if tokens is None or not language else for_language_modelling(federation, tokens)


def _about(
    read: DecodedData,
    division: Division,
    defaults: reading.Defaults,
    wanted: DivisionSettings,
    tokens: Tokens | None,
    sample: int | None,
    vocabulary_from: VocabularyFrom,
    scale: Scale,
) -> dict[str, Any]:
    """How the federation was made."""
    return {
        "source": defaults.name,
        "source_hash": read.source,
        "partition": str(division.spec),
        "client_column": division.client_column,
        "clients": len(division.cuts),
        "seed": wanted.seed,
        "sample": sample,
        "rows": len(read),
        "test_share": wanted.share if division.splits is None else None,
        "val_share": wanted.val_share,
        "stratify": wanted.stratify,
        "group": division.group,
        "vocabulary_from": vocabulary_from if isinstance(read.x, Words) else None,
        "scale": scale if isinstance(read.x, Features) else None,
        "columns": read.details.get("columns"),
        "tokens": None if tokens is None else tokens.about,
        "skipped": [*read.skipped, *division.skipped],
    }


def column_choice(
    partition: str | None,
    client: str | None,
    group: str | None,
    label: str | Sequence[str] | None,
    input: str | Sequence[str] | None,
) -> ColumnChoice:
    """The columns that settings of :func:`load` name."""
    spec = _partition_spec(partition, client)
    return ColumnChoice(
        input=input if input is None or isinstance(input, str) else tuple(input),
        label=(label,) if isinstance(label, str) else None,
        labels=None if label is None or isinstance(label, str) else tuple(label),
        excluded=tuple(column for column in (spec and spec.column, group) if column and column != "none"),
    )


def _partition_spec(partition: str | None, client: str | None) -> PartitionSpec | None:
    if client is None:
        return None if partition is None else PartitionSpec.parse(partition)
    if partition is None:
        return PartitionSpec("by", client)
    spec = PartitionSpec.parse(partition)
    if spec.column is None and spec.kind == "iid" and spec.shift:  # a shift alone joins the natural partition
        return PartitionSpec("by", client, spec.shift, spec.groups)
    if spec.column != client:
        raise ValueError(f"client={client!r} and partition={partition!r} contradict each other: give one of them")
    return spec


def _tokens(tokenizer: Any, max_length: int | None) -> Tokens | None:
    if tokenizer is None:
        if max_length is not None:
            raise ValueError(f"max_length is {max_length}, but it is for texts with a tokenizer, and none is given")
        return None
    return Tokens.of(tokenizer, max_length)


def _load_prepared(path: str | Path, task: TaskName | None, given: Mapping[str, object]) -> Federation:
    defaults = load.__kwdefaults__ or {}
    for setting in defaults.keys() - {"task", "seed", "data_dir", "on_bad"}:
        if (value := given[setting]) != defaults[setting]:
            raise ValueError(f"{setting}={value!r}: {path} is a prepared federation, partitioned and split already")
    federation = prepared.read(path)
    if task not in (None, federation.task):
        raise ValueError(f"task={task!r}: {path} is a prepared federation with the task {federation.task}")
    return federation


def _warn_of_skipped(name: str, skipped: Sequence[str]) -> None:
    if skipped:
        more = f" and {len(skipped) - 3} more" if len(skipped) > 3 else ""
        text = f"{name}: left out {len(skipped)}: {'; '.join(skipped[:3])}{more}"
        warnings.warn(text, SkippedWarning, stacklevel=3)  # the line that calls load


def _check_read(data: DecodedData, name: str, tokens: Tokens | None, language: bool, stratify: bool) -> None:
    """Refuse data that do not fit the settings."""
    if tokens is not None and "tokens" not in data.details:
        raise ValueError(
            f"tokenizer is for texts, but {name} holds none that is recognised (columns: {data.column_names}). Leave "
            "tokenizer out, or name the column of texts with input=… (--input)"
        )
    if stratify and data.task != "classification":
        raise ValueError(f"stratify is for classes, but the task is {data.task}")
    if not language and len(np.unique(data.y, axis=0)) < 2:
        raise DataError(f"all {len(data)} rows of {name} have the same label, two or more are needed (label=… names a column)")
