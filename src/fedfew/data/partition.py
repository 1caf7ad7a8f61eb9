"""How one data set is dealt to clients."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def dirichlet(labels: Indices, clients: int, alpha: float, rng: np.random.Generator, at_least: int = 2) -> list[Indices]:
    """Each class is divided among the clients by shares drawn from Dirichlet(α): small α, few classes a client.

    Every sample goes to exactly one client. Draws in which some client has fewer than ``at_least`` samples are repeated.
    """
    if not 0 < alpha < float("inf"):
        raise ValueError(f"alpha must be a finite number > 0, not {alpha}")
    if clients * at_least > len(labels):
        raise ValueError(f"{len(labels)} samples are too few for {clients} clients with at least {at_least} each")
    for _ in range(1000):
        parts: list[list[Indices]] = [[] for _ in range(clients)]
        for label in np.unique(labels):
            members = rng.permutation(np.flatnonzero(labels == label))
            cuts = (rng.dirichlet(np.full(clients, alpha)).cumsum()[:-1] * len(members)).round().astype(int)
            for part, piece in zip(parts, np.split(members, cuts), strict=True):
                part.append(piece)
        whole = [rng.permutation(np.concatenate(part)) for part in parts]
        if min(map(len, whole)) >= at_least:
            return whole
    raise ValueError(
        f"1000 draws of Dirichlet({alpha:g}) all left some of {clients} clients with fewer than {at_least} samples: "
        "raise alpha or take fewer clients"
    )


def iid(samples: int, clients: int, rng: np.random.Generator) -> list[Indices]:
    """The samples shuffled and dealt evenly."""
    if clients > samples:
        raise ValueError(f"{samples} samples are too few for {clients} clients")
    return np.array_split(rng.permutation(samples), clients)
