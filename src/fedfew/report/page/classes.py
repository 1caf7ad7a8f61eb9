"""Classes, for the page: which share each has of every client's labels, and which are taken for which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfew.report.page import pack
from fedfew.report.page.binning import Rows
from fedfew.training.confusion import Confusion

CELLS = 1_000_000  # clients × classes at most; where there are more, the rarest classes are shown as one
MOST_CLASSES = 200  # the matrix of more would be a page of its own
MOST_ENTRIES = 60_000  # of single clients


def distribution(counts: NDArray[Any], names: Sequence[str], rows: Rows) -> dict[str, Any]:
    """Of ``counts[M, classes]``: the classes' names and, in one byte a number, their shares among each client's samples."""
    counts = np.asarray(counts, dtype=np.float64)
    called = [str(name) for name in names] if len(names) == counts.shape[1] else [str(c) for c in range(counts.shape[1])]
    most = max(1, CELLS // len(counts))
    if len(called) > most + 1:
        by_frequency = np.argsort(-counts.sum(0), kind="stable")
        kept = np.sort(by_frequency[:most])
        rest = counts[:, by_frequency[most:]].sum(1, keepdims=True)
        called = [called[c] for c in kept] + [f"{counts.shape[1] - most} others"]
        counts = np.concatenate([counts[:, kept], rest], axis=1)
    in_rows: NDArray[np.float64] = np.stack(
        [np.bincount(rows.of, column, len(rows)).astype(np.float64) for column in counts.T], axis=1
    )
    return {
        "classes": called,
        "all": pack.floats(_shares(counts.sum(0, keepdims=True))[0]),
        "clients": pack.shares(_shares(counts)),
        "rows": pack.shares(_shares(in_rows)) if rows.binned else None,
    }


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


def _shares(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    totals = counts.sum(1, keepdims=True)
    return np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0)
