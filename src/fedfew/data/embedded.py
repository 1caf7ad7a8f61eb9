"""Data that needs no download: scikit-learn's 1,797 hand-written digits of 8×8 pixels."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from fedfew.data.decoded import DecodedData


def digit_data() -> DecodedData:
    """Images [1797, 1, 8, 8] with values in 0 … 1."""
    table = np.loadtxt(_scikit_learn() / "datasets" / "data" / "digits.csv.gz", delimiter=",", dtype=np.int64)
    pixels, labels = table[:, :-1], table[:, -1]  # pixels are 0 … 16
    return DecodedData(
        x=(pixels / 16.0).astype(np.float32).reshape(-1, 1, 8, 8),
        y=labels,
        class_names=tuple(map(str, range(10))),
        columns={},
        row=np.arange(len(labels)),
        total=len(labels),
        source="scikit-learn digits",
    )


def _scikit_learn() -> Path:
    """The package's folder. To import it, which :func:`sklearn.datasets.load_digits` needs, takes a second."""
    found = importlib.util.find_spec("sklearn")
    assert found is not None
    assert found.submodule_search_locations is not None
    return Path(found.submodule_search_locations[0])
