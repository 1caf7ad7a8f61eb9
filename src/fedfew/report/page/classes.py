"""Which classes are taken for which, for the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedfew.report.page import pack
from fedfew.training.confusion import Confusion

MOST_CLASSES = 200  # the matrix of more would be a page of its own
MOST_ENTRIES = 60_000  # of single clients


def confusion(counts: Confusion, names: Sequence[str]) -> dict[str, Any]:
    """The matrix of all clients and, unless there are too many, the entries of every client."""
    matrix = counts.matrix()
    document: dict[str, Any] = {
        "classes": list(names),
        "samples": pack.whole(matrix.sum(1)),
        "predicted": pack.whole(matrix.sum(0)),
    }
    document["right"] = pack.whole(matrix.diagonal())
    if counts.classes <= MOST_CLASSES:
        document["all"] = pack.whole(matrix)
        if len(counts.entries) <= MOST_ENTRIES:
            document["entries"] = pack.whole(np.ascontiguousarray(counts.entries))
    return document
