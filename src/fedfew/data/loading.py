"""The way in: :func:`load`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedfew.data import cache, prepared, split
from fedfew.data.assemble import VocabularyFrom, federation_of
from fedfew.data.dealing import Dealing
from fedfew.data.errors import DataError, OnBad, SkippedWarning
from fedfew.data.partition import Indices
from fedfew.data.rows import Rows
from fedfew.federation import Federation, Pixels

CLIENTS = 20


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
    size: int | tuple[int, int, int] | None = None,
    pixels: Pixels | None = None,
    vocabulary_from: VocabularyFrom = "train",
    on_bad: OnBad = "raise",
) -> Federation:
    """A data set dealt to clients, each client's samples cut into training and test (and validation).

    name_or_path: a name of :func:`fedfew.data.names`; a parquet file or a folder of them, a folder with one subfolder of images a
        class, a CSV, an ``.npz``; a federation written by ``fedfew data prepare``; or ``hub:owner/name``.
    clients: how many; unless given the paper's number, 20 for data of your own, and one a value for ``by:column``.
    partition: "iid", "dirichlet:0.5", "dirichlet-published:0.1", "pathological:2", "quantity:0.5", "by:column", "rotation",
        "label-permutation", or one of the former and one of the last two joined by "+". See ``docs/data.md``.
    data_dir: looked at before any network; ``$FEDFEW_DATA`` unless given.
    sample: keep so many rows, drawn by the seed: for quick tries.
    test_share, val_share: of each client's samples. stratify: each class in that proportion.
    group: a column (a patient, a lesion) whose rows stay on one side of the cut and, unless dealt by a column, at one client;
        "none": not even where the data set asks for it.
    at_least: samples a client must have for a random partition to be accepted; unless given what the cut needs, or the
        partition's own rule.
    input, label: columns, where they cannot be told from their names. size: images are brought to so many pixels, a side, or to
        (channels, height, width). pixels: "symmetric" feeds them to models as −1 … 1, "unit" as 0 … 1.
    vocabulary_from: texts the vocabulary is built from: training texts, or "all" as in the published experiments.
    on_bad: what becomes of rows that cannot be used: "raise" names the first, "skip" leaves them out, and says how many.
    """
    if on_bad not in ("raise", "skip"):
        raise ValueError(f'on_bad must be "raise" or "skip", not {on_bad!r}')
    if vocabulary_from not in ("train", "all"):
        raise ValueError(f'vocabulary_from must be "train" or "all", not {vocabulary_from!r}')
    split.check_shares(test_share, val_share)
    if stratify and group not in (None, "none"):
        raise ValueError("stratify and group exclude each other: whole groups cannot be cut class by class")
    if prepared.is_prepared(name_or_path):
        asked = {"clients": clients, "partition": partition, "sample": sample, "group": group, "label": label, "input": input}
        for setting, value in asked.items():
            if value is not None:
                raise ValueError(f"{setting}={value!r}: {name_or_path} is a prepared federation, dealt and cut already")
        return prepared.read(name_or_path)
    text = str(name_or_path)
    dealing = Dealing.parse(partition) if partition is not None else None
    apart = tuple(c for c in (dealing.value if dealing and dealing.how == "by" else None, group) if c and c != "none")
    rows, defaults = _read(text, data_dir, seed, sample, input, label, size, apart, on_bad)
    dealing = dealing or Dealing.parse(defaults.partition)
    if clients is None and (partition is None or dealing.how != "by"):
        clients = defaults.clients
    group = defaults.group if group is None and not stratify else group
    group = None if group == "none" else group
    if len(np.unique(rows.y)) < 2:
        only = rows.class_names[rows.y[0]]
        raise DataError(
            f"all {len(rows)} rows of {text} have the one label {only!r}: there is nothing to tell apart (label=… names a column)"
        )
    units = _units(rows, group)
    least = 3 if val_share else 2
    parts = dealing.parts(rows, clients, np.random.default_rng(seed), at_least=at_least, least=least, units=units)
    skipped = list(rows.skipped)
    cuts = _cut(rows, parts, units, group, test_share, val_share, stratify, on_bad, skipped)
    if skipped:
        more = f" and {len(skipped) - 3} more" if len(skipped) > 3 else ""
        warnings.warn(f"{text}: left out {len(skipped)}: {'; '.join(skipped[:3])}{more}", SkippedWarning, stacklevel=2)
    about = {
        "source": defaults.name,
        "source_hash": rows.source,
        "partition": str(dealing),
        "clients": len(cuts),
        "seed": seed,
        "sample": sample,
        "rows": len(rows),
        "test_share": test_share,
        "val_share": val_share,
        "stratify": stratify,
        "group": group,
        "vocabulary_from": vocabulary_from if defaults.kind == "text" else None,
        "skipped": skipped,
        "notes": [*rows.notes, *defaults.notes(rows)],
    }
    return federation_of(
        rows,
        cuts,
        dealing,
        name=f"{defaults.name}-{str(dealing).replace(':', '-')}",
        seed=seed,
        pixels=pixels or defaults.pixels,
        vocabulary_from=vocabulary_from,
        about=about,
    )


class _Defaults:
    """What a data set brings along for what the user does not say."""

    def __init__(self, name: str, source: Any = None, kind: Literal["image", "text", "array"] = "array") -> None:
        self.name = name
        self.source = source
        self.kind = kind
        self.clients: int = source.clients if source else CLIENTS
        self.partition: str = source.partition if source else "dirichlet:0.5"
        self.group: str | None = source.group if source else None
        self.pixels: Pixels = source.pixels if source else "symmetric"

    def notes(self, rows: Rows) -> list[str]:
        public = self.source.rows if self.source else None
        classes = self.source.classes if self.source else None
        found = []
        if public and rows.total != public:
            found.append(f"{rows.total:,} of the {public:,} rows of the public data set")
        if classes and len(rows.class_names) != classes:
            found.append(f"{len(rows.class_names)} of the {classes} classes of the public data set")
        return found


def _read(
    text: str,
    data_dir: str | Path | None,
    seed: int,
    sample: int | None,
    input: str | Sequence[str] | None,
    label: str | None,
    size: int | tuple[int, int, int] | None,
    apart: tuple[str, ...],
    on_bad: OnBad,
) -> tuple[Rows, _Defaults]:
    """The rows asked for, from the cache or decoded."""
    if sample is not None and sample < 2:
        raise ValueError(f"sample must be ≥ 2, not {sample}")
    if text == "digits":
        from fedfew.data.digits import digit_rows

        defaults = _Defaults("digits")
        defaults.partition = "rotation"
        rows = digit_rows()
        return (rows if sample is None else rows.sampled(_drawn(rows.total, sample, seed))), defaults
    from fedfew.data import finding
    from fedfew.data.decode import decode
    from fedfew.data.readers import Columns

    columns = Columns(
        input=input if input is None or isinstance(input, str) else tuple(input),
        label=None if label is None else (label,),
        apart=apart,
    )
    found = finding.find(text, data_dir, columns, {"size": size})
    source = found.source
    full = source.size if source else None
    if isinstance(size, int):
        full = (full[0] if full else 3, size, size)
    elif size is not None:
        full = size
    if full is not None and (len(full) != 3 or full[0] not in (1, 3) or min(full) < 1):
        raise ValueError(f"size must be a number of pixels or (1 or 3 channels, height, width), not {size}")

    def decoded() -> Rows:
        raw = found.read()
        return decode(
            raw,
            found.key,
            size=full,
            classes=source.classes if source else None,
            on_bad=on_bad,
            only=None if sample is None else _drawn(len(raw), sample, seed),
            name=found.name,
        )

    kept = cache.stored(found.key, found.name) if found.worth_keeping else None
    if kept is not None:
        rows = kept
    elif sample is not None or not found.worth_keeping:
        rows = decoded()  # a part of the rows is soon decoded and would be in the way of the whole later
    else:
        rows = cache.remembered(found.key, found.name, decoded)
    if sample is not None:
        rows = rows.sampled(_drawn(rows.total, sample, seed))
    if rows.skipped and on_bad == "raise":
        raise DataError(f'{rows.skipped[0]} (on_bad="skip" leaves such rows out)')
    kind: Literal["image", "text", "array"] = "array" if isinstance(rows.x, np.ndarray) else "text"
    return rows, _Defaults(found.name, source, kind)


def _drawn(total: int, sample: int, seed: int) -> Indices:
    """Numbers of the rows of a sample."""
    if sample > total:
        raise ValueError(f"sample is {sample}, but there are only {total} rows")
    return np.sort(np.random.default_rng([seed, 1]).choice(total, sample, replace=False))


def _units(rows: Rows, group: str | None) -> Indices | None:
    if group is None:
        return None
    if group not in rows.columns:
        raise DataError(f"there is no column {group!r} to group by (there is: {', '.join(rows.columns) or 'none'})")
    return rows.columns[group].codes


def _cut(
    rows: Rows,
    parts: list[Indices],
    units: Indices | None,
    group: str | None,
    test_share: float,
    val_share: float,
    stratify: bool,
    on_bad: OnBad,
    skipped: list[str],
) -> list[split.Cut]:
    """Each client's cut; clients that cannot be cut are left out where the user asked for that."""
    cuts = []
    sides: dict[int, int] = {}
    for client, part in enumerate(parts):
        who = f"client {client}"
        try:
            if units is not None:
                cut = split.grouped(part, units, str(group), test_share, val_share, who, sides)
            elif stratify:
                cut = split.stratified(part, rows.y, test_share, val_share, who)
            else:
                cut = split.plain(part, test_share, val_share, who)
        except DataError as error:
            if on_bad == "raise":
                raise
            skipped.append(str(error))
            continue
        cuts.append(cut)
    if not cuts:
        raise DataError(f"no client can be cut: {skipped[-1]}")
    return cuts
