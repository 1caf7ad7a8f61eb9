"""Data that needs no download: scikit-learn's 1,797 hand-written digits of 8×8 pixels."""

from __future__ import annotations

import random

import numpy as np

from fedfew.data.decoded import DecodedData


def digit_data() -> DecodedData:
    """Images [1797, 1, 8, 8] with values in 0 … 1."""
    state = random.getstate()
    from sklearn.datasets import load_digits

    random.setstate(state)  # the import draws from it
    raw = load_digits()
    return DecodedData(
        x=(raw.images / 16.0).astype(np.float32)[:, None],  # [N, 1, 8, 8] in [0, 1]
        y=raw.target.astype(np.int64),
        class_names=tuple(map(str, range(10))),
        columns={},
        row=np.arange(len(raw.target)),
        total=len(raw.target),
        source="scikit-learn digits",
    )
