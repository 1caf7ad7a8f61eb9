"""The embedded data set: scikit-learn's 1,797 hand-written digits of 8×8 pixels. No download."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from fedfew.data.loading import load
from fedfew.data.rows import Rows
from fedfew.federation import Federation
from fedfew.util.spelling import unknown

PARTITIONS = ("rotation", "dirichlet", "iid")


def digits(
    clients: int = 20,
    partition: Literal["rotation", "dirichlet", "iid"] = "rotation",
    *,
    alpha: float = 0.5,
    test_share: float = 0.25,
    seed: int = 0,
) -> Federation:
    """Digits dealt to clients. ``load("digits", …)`` knows further partitions.

    partition: "rotation": dealt evenly, and client i sees them turned by (i mod 4) · 90°. No one model can serve all four groups
    (a six is a nine), four models can. "dirichlet": label skew, Dirichlet(alpha) per class. "iid": dealt evenly, as they are.
    """
    if partition not in PARTITIONS:
        raise unknown("partition of digits called", partition, PARTITIONS)
    spec = f"dirichlet:{alpha}" if partition == "dirichlet" else partition
    federation = load("digits", clients=clients, partition=spec, test_share=test_share, seed=seed)
    return replace(federation, name=f"digits-{partition}")


def digit_rows() -> Rows:
    from sklearn.datasets import load_digits

    raw = load_digits()
    return Rows(
        x=(raw.images / 16.0).astype(np.float32)[:, None],  # [N, 1, 8, 8] in [0, 1]
        y=raw.target.astype(np.int64),
        class_names=tuple(map(str, range(10))),
        columns={},
        row=np.arange(len(raw.target)),
        total=len(raw.target),
        source="scikit-learn digits",
    )
