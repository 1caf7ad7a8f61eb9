"""One line per decision about the data that the user did not make: printed by the commands, kept in ``federation.about``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedfew.data.assemble import VocabularyFrom
from fedfew.data.decoded import MISSING, DecodedData, Features, Words
from fedfew.data.division import Division
from fedfew.data.partition_spec import PartitionSpec
from fedfew.data.raw import CLIENT, TEST
from fedfew.data.reading import Defaults
from fedfew.data.table_preprocessing import Scale, missing_values
from fedfew.data.tokens import Tokens
from fedfew.federation import Pixels
from fedfew.imaging.decoding import Size
from fedfew.targets import not_trained
from fedfew.util.spelling import counted

MOST_NAMED = 5
_OTHER_USE = ("the label", "client or group", "the split", "not named in input")


def of(
    data: DecodedData, division: Division, defaults: Defaults, tokens: Tokens | None, scale: Scale, *, partition_given: bool
) -> list[str]:
    """All notes about a federation."""
    found = []
    if defaults.keep_split and not partition_given and not division.spec.column:  # data of the user's own
        among = f"{counted(len(division.cuts), 'client')} by partition {division.spec}"
        found.append(f"the rows are divided among {among}; client=… names a column of clients")
    own = PartitionSpec.parse(defaults.partition).column
    if own == CLIENT and division.spec.column != own:
        among = f"{counted(len(division.cuts), 'client')} by partition {division.spec}"
        found.append(f"the data are given per client, but all rows are divided anew, among {among}")
    found += [*data.notes, *(tokens.notes if tokens else ()), *division.notes]
    found += [*_without_name(data, division), *_alike("classes", data.class_names), *_alike("clients", division.names)]
    return [*found, *_features(data, scale), *_splits(division), *_not_trained(data, division), *defaults.notes(data)]


def without_effect(
    data: DecodedData, size: int | Size | None, pixels: Pixels | None, scale: Scale, vocabulary_from: VocabularyFrom
) -> list[str]:
    """Settings that were given for another kind of data."""
    kind = _kind(data)
    settings = {
        "size": (size, None, "images to be decoded", ("images",)),
        "pixels": (pixels, None, "images in bytes", ("images", "arrays of bytes")),
        "scale": (scale, "client", "tables", ("tables",)),
        "vocabulary_from": (vocabulary_from, "train", "texts", ("texts",)),
    }
    return [
        f"{name} is {value}, but it is for {meant}, and these are {kind}: it has no effect"
        for name, (value, default, meant, fits) in settings.items()
        if value != default and kind not in fits
    ]


def _kind(data: DecodedData) -> str:
    """What the samples are, in words."""
    if isinstance(data.x, Features):
        return "tables"
    if isinstance(data.x, Words) or "tokens" in data.details:
        return "texts"
    if "depth" in data.details:
        return "images"
    return "arrays of bytes" if data.x.dtype == np.uint8 else "arrays of numbers"


def _without_name(data: DecodedData, division: Division) -> list[str]:
    """Rows without a value in the column of clients or of groups: they go together, under the name "(missing)"."""
    found = []
    for use, name in (("client", division.spec.column), ("group", division.group)):
        column = data.columns.get(name or "")
        if column is not None and MISSING in column.values:
            rows = int((column.codes == column.values.index(MISSING)).sum())
            found += [f"{rows:,} rows have no value in {name}: they are one {use}, {MISSING}"] if rows else []
    return found


def _alike(what: str, names: Sequence[str]) -> list[str]:
    """Names that a person would take for one. Single letters may differ by case, as classes of handwriting do."""
    spelled: dict[str, list[str]] = {}
    for name in names:
        spelled.setdefault(" ".join(name.split()).casefold(), []).append(name)
    alike = [" and ".join(map(repr, several)) for key, several in spelled.items() if len(several) > 1 < len(key)]
    return [f"{what} whose names differ by case or spaces alone: {', '.join(alike[:MOST_NAMED])}"] if alike else []


def _features(data: DecodedData, scale: Scale) -> list[str]:
    """Columns left out, and missing values."""
    if not isinstance(data.x, Features):
        return []
    found = []
    columns = data.details.get("columns") or {"left_out": {}}
    left_out = {name: reason for name, reason in columns["left_out"].items() if reason not in _OTHER_USE}
    if left_out:
        listed = "; ".join(f"{name or '(no name)'} ({reason})" for name, reason in left_out.items())
        found.append(f"columns left out: {listed}. input=… names the columns to use")
    if missing := missing_values(data.x):
        whose = "all clients" if scale == "global" else "the client"
        listed = ", ".join(f"{name} ({count:,})" for name, count in missing.items())
        found.append(f"missing values: {listed}; numbers become the training mean of {whose}, words a category of their own")
    return found


def _not_trained(data: DecodedData, division: Division) -> list[str]:
    """Classes that no client has a training sample of."""
    if data.task != "classification":
        return []
    classes = len(data.class_names)
    train, test = (
        np.bincount(data.y[np.concatenate(rows)], minlength=classes)
        for rows in ([cut.train for cut in division.cuts], [part for cut in division.cuts for part in (cut.val, cut.test)])
    )
    return not_trained(data.class_names, train, test)


def _splits(division: Division) -> list[str]:
    """Where the source's own split is kept."""
    splits, units = division.splits, division.units
    if splits is None:
        return []
    found = [f"the data's own test split is kept: {int((splits == TEST).sum()):,} of {len(splits):,} rows"]
    both = 0 if units is None else len(np.intersect1d(units[splits == TEST], units[splits != TEST]))
    if both:
        found.append(
            f"{both:,} values of {division.group} are in the data's training and test split: test_share=… splits all rows again"
        )
    return found
