"""The embedded digits as a federation, with the partitions of the quick start."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from fedfew.data.loading import load
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
    """Digits partitioned among clients. ``load("digits", …)`` offers further partitions.

    partition: "rotation": divided evenly, and client i sees the images rotated by (i mod 4) · 90°. No single model can serve all
    four groups (a six is a nine); four models can. "dirichlet": label skew, Dirichlet(alpha) per class. "iid": divided evenly.
    """
    if partition not in PARTITIONS:
        raise unknown("partition of digits called", partition, PARTITIONS)
    spec = f"dirichlet:{alpha}" if partition == "dirichlet" else partition
    federation = load("digits", clients=clients, partition=spec, test_share=test_share, seed=seed)
    return replace(federation, name=f"digits-{partition}")
