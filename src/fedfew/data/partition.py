"""Partitioning one data set among clients: functions that return the row indices per client, shuffled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]

DRAWS = 1000  # a random partition fails with an error after this many draws
PUBLISHED_LEAST = 40


def dirichlet(labels: Indices, clients: int, alpha: float, rng: np.random.Generator, at_least: int = 2) -> list[Indices]:
    """Each class is divided among the clients by shares drawn from Dirichlet(α): with small α a client holds few classes.

    Every sample goes to exactly one client. Draws in which some client has fewer than ``at_least`` samples are repeated.
    """
    _check_alpha("alpha", alpha)
    _check_enough(len(labels), clients, at_least)
    for _ in range(DRAWS):
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
        f"{DRAWS} draws of Dirichlet({alpha:g}) all left some of {clients} clients with fewer than {at_least} samples: "
        f"raise alpha (partition dirichlet:{2 * alpha:g}), take fewer clients (clients=…), or divide the rows evenly "
        "(partition iid)"
    )


def dirichlet_published(
    labels: Indices, clients: int, alpha: float, rng: np.random.Generator, at_least: int | None = None
) -> list[Indices]:
    """The variant of the published experiments, more even in size than :func:`dirichlet`.

    Class by class, a client that already has N/M samples or more gets none, and the others' shares are scaled up to 1. The draw
    is repeated until every client has ``at_least`` samples; None: as published, 40 or half of N/M, whichever is less.
    """
    if at_least is None:
        at_least = min(PUBLISHED_LEAST, len(labels) // (2 * clients))
    _check_alpha("alpha", alpha)
    _check_enough(len(labels), clients, at_least)
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    draws = max(DRAWS, 100_000 // len(members))  # cost per draw grows with the classes; with few classes valid draws are rarer
    for _ in range(draws):
        counts = _published_counts([len(m) for m in members], clients, alpha, rng)
        if counts is not None and counts.sum(axis=0).min() >= at_least:
            pieces = [np.split(rng.permutation(m), row.cumsum()[:-1]) for m, row in zip(members, counts, strict=True)]
            return [rng.permutation(np.concatenate([piece[i] for piece in pieces])) for i in range(clients)]
    raise ValueError(
        f"{draws} draws of the published Dirichlet({alpha:g}) all left some of {clients} clients with fewer than {at_least} "
        "samples: raise alpha, take fewer clients or lower at_least"
    )


def _published_counts(sizes: list[int], clients: int, alpha: float, rng: np.random.Generator) -> Indices | None:
    """Samples per class and client [classes, clients] in one draw; None if only full clients drew a share."""
    counts = np.zeros((len(sizes), clients), dtype=np.int64)
    full = sum(sizes) / clients
    for j, size in enumerate(sizes):
        share = rng.dirichlet(np.full(clients, alpha)) * (counts.sum(axis=0) < full)
        if share.sum() == 0:
            return None
        ends = np.floor((share / share.sum()).cumsum() * size + 1e-9).astype(np.int64)
        ends[np.flatnonzero(share)[-1] :] = size  # rounding must not give the last sample to a client without a share
        counts[j] = np.diff(ends, prepend=0)
    return counts


def pathological(labels: Indices, clients: int, classes_each: int, rng: np.random.Generator) -> list[Indices]:
    """Every client holds exactly ``classes_each`` classes, assigned in order; a class is divided evenly among its clients."""
    present = np.unique(labels)
    if not 1 <= classes_each <= len(present):
        raise ValueError(f"pathological:{classes_each}: the number of classes per client must be between 1 and {len(present)}")
    if clients * classes_each < len(present):
        raise ValueError(
            f"{clients} clients of {classes_each} classes each cannot hold all {len(present)} classes: "
            f"take at least {-(-len(present) // classes_each)} clients or {-(-len(present) // clients)} classes per client"
        )
    holders: list[list[int]] = [[] for _ in present]
    for place in range(clients * classes_each):
        holders[place % len(present)].append(place // classes_each)
    parts: list[list[Indices]] = [[] for _ in range(clients)]
    for label, who in zip(present, holders, strict=True):
        members = rng.permutation(np.flatnonzero(labels == label))
        if len(members) < len(who):
            raise ValueError(f"class {label} has {len(members)} samples, too few for the {len(who)} clients that hold it")
        for client, piece in zip(who, np.array_split(members, len(who)), strict=True):
            parts[client].append(piece)
    return [rng.permutation(np.concatenate(part)) for part in parts]


def iid(samples: int, clients: int, rng: np.random.Generator) -> list[Indices]:
    """The samples shuffled and divided evenly."""
    _check_clients(clients)
    if clients > samples:
        raise ValueError(f"{samples} samples are too few for {clients} clients")
    return np.array_split(rng.permutation(samples), clients)


def quantity(samples: int, clients: int, beta: float, rng: np.random.Generator, at_least: int = 2) -> list[Indices]:
    """The samples shuffled, and divided in amounts from Dirichlet(β): with small β a few clients have nearly everything.

    Draws in which some client has fewer than ``at_least`` samples are repeated.
    """
    _check_alpha("beta", beta)
    _check_enough(samples, clients, at_least)
    for _ in range(DRAWS):
        ends = (rng.dirichlet(np.full(clients, beta)).cumsum() * samples).round().astype(np.int64)
        ends[-1] = samples
        if np.diff(ends, prepend=0).min() >= at_least:
            return np.split(rng.permutation(samples), ends[:-1])
    raise ValueError(
        f"{DRAWS} draws of quantity:{beta:g} all left some of {clients} clients with fewer than {at_least} samples: "
        "raise beta or take fewer clients"
    )


def by_value(codes: Indices, clients: int | None, rng: np.random.Generator) -> list[Indices]:
    """Rows with the same code stay together.

    clients: None: one client per code, in the order of the codes. Otherwise the codes are assigned, those with most rows first,
    each to the client that has fewest rows so far.
    """
    present, position = np.unique(codes, return_inverse=True)
    sizes = np.bincount(position)
    if clients is None:
        return [rng.permutation(rows) for rows in rows_by_code(position)]
    _check_clients(clients)
    if clients > len(present):
        raise ValueError(f"the column has {len(present)} different values, too few for {clients} clients")
    shuffled = rng.permutation(len(present))
    owner = np.zeros(len(present), dtype=np.int64)
    load = np.zeros(clients, dtype=np.int64)
    for value in shuffled[np.argsort(-sizes[shuffled], kind="stable")]:
        owner[value] = load.argmin()
        load[owner[value]] += sizes[value]
    return [rng.permutation(rows) for rows in rows_by_code(owner[position])]


def rows_by_code(codes: Indices) -> list[Indices]:
    """Row indices per code 0, 1, …; every code up to the largest occurs at least once."""
    return np.split(np.argsort(codes, kind="stable"), np.bincount(codes).cumsum()[:-1])


def _check_alpha(name: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be a finite number > 0, not {value}")


def _check_clients(clients: int) -> None:
    if clients < 1:
        raise ValueError(f"clients must be ≥ 1, not {clients}")


def _check_enough(samples: int, clients: int, at_least: int) -> None:
    _check_clients(clients)
    if clients * at_least > samples:
        raise ValueError(f"{samples} samples are too few for {clients} clients with at least {at_least} each")
