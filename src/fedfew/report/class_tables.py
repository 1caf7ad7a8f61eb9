"""Per class: recall, precision and F1, and which classes are taken for which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from fedfew.evaluation.client_metrics import class_scores
from fedfew.report.tables import empty, name_cell, percent

MOST_COLUMNS = 12  # classes up to which the whole matrix fits a terminal
MOST_PAIRS = 15


def scores(matrix: NDArray[np.int64], names: Sequence[str], whose: str) -> Table:
    """One row per class."""
    table = empty(f"test samples of {whose}, %", "class", "samples", "recall", "precision", "F1")
    found = class_scores(matrix)
    for i, name in enumerate(names):
        table.add_row(name_cell(name), str(found.samples[i]), *(percent(c[i]) for c in (found.recall, found.precision, found.f1)))
    return table


def confusion(matrix: NDArray[np.int64], names: Sequence[str]) -> Table:
    """The matrix; of many classes, the most frequent errors."""
    if len(names) <= MOST_COLUMNS:
        table = empty("confusion matrix", "class ↓ predicted →", *(name_cell(name) for name in names))
        for name, row in zip(names, matrix.tolist(), strict=True):
            table.add_row(name_cell(name), *(str(count) if count else "·" for count in row))
        return table
    table = empty("the most frequent errors", "class", "predicted as", "samples", "% of the class")
    for i, j in errors(matrix)[:MOST_PAIRS]:
        share = percent(matrix[i, j] / matrix[i].sum())
        table.add_row(name_cell(names[i]), name_cell(names[j]), str(matrix[i, j]), share)
    return table


def errors(matrix: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Pairs of a class and another that it is predicted as, the most frequent first."""
    wrong = matrix - np.diag(matrix.diagonal())
    order = np.argsort(-wrong, axis=None, kind="stable")[: int((wrong > 0).sum())]
    return [(int(i), int(j)) for i, j in zip(*np.unravel_index(order, wrong.shape), strict=True)]


def values(matrix: NDArray[np.int64], names: Sequence[str]) -> dict[str, Any]:
    """The same as plain values."""
    columns = {name: column.tolist() for name, column in asdict(class_scores(matrix)).items()}
    rows = [{"class": name} | {key: column[i] for key, column in columns.items()} for i, name in enumerate(names)]
    return {"classes": rows, "confusion": matrix.tolist()}
