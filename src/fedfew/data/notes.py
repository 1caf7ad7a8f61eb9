"""One line per decision about the data that the user did not make: printed by the commands, kept in ``federation.about``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedfew.data.decoded import DecodedData, Features
from fedfew.data.partition import Indices
from fedfew.data.preprocessing import Scale, missing_values
from fedfew.data.raw import TEST

_OTHER_USE = ("the label", "client or group", "the split", "not named in input")


def about_clients(clients: int, partition: str) -> list[str]:
    """Of data of the user's own, where neither clients nor a partition are named."""
    return [f"the rows are divided among {clients} clients by partition {partition}; client=… names a column of clients"]


def about_data(
    data: DecodedData, units: Indices | None, group: str | None, splits: NDArray[np.int8] | None, scale: Scale
) -> list[str]:
    found = []
    columns = data.details.get("columns") or {"left_out": {}}
    left_out = {name: reason for name, reason in columns["left_out"].items() if reason not in _OTHER_USE}
    if left_out and isinstance(data.x, Features):
        listed = "; ".join(f"{name or '(no name)'} ({reason})" for name, reason in left_out.items())
        found.append(f"columns left out: {listed}. input=… names the columns to use")
    if isinstance(data.x, Features):
        missing = missing_values(data.x)
        if missing:
            whose = "all clients" if scale == "global" else "the client"
            listed = ", ".join(f"{name} ({count:,})" for name, count in missing.items())
            found.append(f"missing values: {listed}; numbers become the training mean of {whose}, words a category of their own")
    if splits is not None:
        found.append(f"the data's own test split is kept: {int((splits == TEST).sum()):,} of {len(splits):,} rows")
        if units is not None:
            both = np.intersect1d(units[splits == TEST], units[splits != TEST])
            if len(both):
                found.append(
                    f"{len(both):,} values of {group} are in the data's training and test split: test_share=… splits anew"
                )
    return found
