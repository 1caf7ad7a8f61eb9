"""The embedded data set: scikit-learn's 1,797 hand-written digits of 8×8 pixels. No download."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedfew.data import partition as partitions
from fedfew.federation import Federation
from fedfew.spelling import unknown

TURNS = 4


def digits(
    clients: int = 20,
    partition: Literal["rotation", "dirichlet", "iid"] = "rotation",
    *,
    alpha: float = 0.5,
    test_share: float = 0.25,
    seed: int = 0,
) -> Federation:
    """Digits dealt to clients.

    partition: "rotation": dealt evenly, and client i sees them turned by (i mod 4) · 90°. No one model can serve all four groups
    (a six is a nine), four models can. "dirichlet": label skew, Dirichlet(alpha) per class. "iid": dealt evenly, as they are.
    """
    from sklearn.datasets import load_digits

    if partition not in ("rotation", "dirichlet", "iid"):
        raise unknown("partition of digits called", partition, ("rotation", "dirichlet", "iid"))
    if not 0 < test_share < 1:
        raise ValueError(f"test_share must lie between 0 and 1, not {test_share}")
    raw = load_digits()
    images = (raw.images / 16.0).astype(np.float32)[:, None]  # [N, 1, 8, 8] in [0, 1]
    labels = raw.target.astype(np.int64)
    rng = np.random.default_rng(seed)
    if partition == "dirichlet":
        parts = partitions.dirichlet(labels, clients, alpha, rng)
    else:
        parts = partitions.iid(len(labels), clients, rng)
    train, test = [], []
    for i, part in enumerate(parts):
        x = np.rot90(images[part], i % TURNS if partition == "rotation" else 0, axes=(2, 3)).copy()
        cut = min(max(1, round(len(part) * test_share)), len(part) - 1)
        test.append((x[:cut], labels[part[:cut]]))
        train.append((x[cut:], labels[part[cut:]]))
    groups = [i % TURNS for i in range(clients)] if partition == "rotation" else None
    return Federation.from_arrays(train, test, classes=10, name=f"digits-{partition}", groups=groups)
