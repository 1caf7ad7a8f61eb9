"""One line per decision about the data that the user did not make: printed by the commands, kept in ``federation.about``."""

from __future__ import annotations

import numpy as np

from fedfew.data.decoded import MISSING, DecodedData, Features
from fedfew.data.division import Division
from fedfew.data.raw import TEST
from fedfew.data.reading import Defaults
from fedfew.data.table_preprocessing import Scale, missing_values
from fedfew.data.tokens import Tokens
from fedfew.targets import not_trained
from fedfew.util.spelling import counted

_OTHER_USE = ("the label", "client or group", "the split", "not named in input")


def of(
    data: DecodedData, division: Division, defaults: Defaults, tokens: Tokens | None, scale: Scale, *, partition_given: bool
) -> list[str]:
    """All notes about a federation."""
    found = []
    if defaults.keep_split and not partition_given and not division.spec.column:  # data of the user's own
        among = f"{counted(len(division.cuts), 'client')} by partition {division.spec}"
        found.append(f"the rows are divided among {among}; client=… names a column of clients")
    found += [*data.notes, *(tokens.notes if tokens else ()), *division.notes]
    found += _without_name(data, division)
    return [*found, *_features(data, scale), *_splits(division), *_not_trained(data, division), *defaults.notes(data)]


def _without_name(data: DecodedData, division: Division) -> list[str]:
    """Rows without a value in the column of clients or of groups: they go together, under the name "(missing)"."""
    found = []
    for use, name in (("client", division.spec.column), ("group", division.group)):
        column = data.columns.get(name or "")
        if column is not None and MISSING in column.values:
            rows = int((column.codes == column.values.index(MISSING)).sum())
            found += [f"{rows:,} rows have no value in {name}: they are one {use}, {MISSING}"] if rows else []
    return found


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
