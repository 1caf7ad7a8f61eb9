"""Float64 references of methods that cluster clients by what they send; see test_parity.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.linalg import subspace_angles
from scipy.spatial.distance import squareform

from fedfew.training.run import Run
from tests.methods.few_models_references import flat
from tests.methods.formulas import ROUNDS, SHARE, K, Local, M, Served, Weights, X, loss, mean

Points = NDArray[np.float64]


def k_means(points: Points, number: int) -> list[int]:
    """Of all starts from a point and points far from it and each other, the one that ends best."""
    ends = [_k_means(points, number, first) for first in range(len(points))]
    return min(ends, key=lambda end: end[0])[1]


def _k_means(points: Points, number: int, first: int) -> tuple[float, list[int]]:
    far = [first]
    while len(far) < number:
        far.append(int(np.argmax([min(np.linalg.norm(p - points[j]) for j in far) for p in points])))
    centres = [points[j] for j in far]
    for _ in range(10):
        label = [int(np.argmin([np.linalg.norm(p - c) for c in centres])) for p in points]
        for k in set(label):
            centres[k] = np.mean([points[i] for i in range(len(points)) if label[i] == k], axis=0)
    return sum(float(np.linalg.norm(p - centres[k])) ** 2 for p, k in zip(points, label, strict=True)), label


def per_cluster(models: list[Weights], label: list[int], r: int, batch: int) -> list[Weights]:
    """FedAvg in each cluster."""
    trained = [Local(i, r, batch).sgd(models[label[i]])[0] for i in range(M)]
    of = [[i for i in range(M) if label[i] == k] for k in range(len(models))]
    return [mean([trained[i] for i in m], [SHARE[i] for i in m]) if m else models[k] for k, m in enumerate(of)]


def clove(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    """The matching is looked for among all permutations."""
    models, label = start[:K], None
    for r in range(1, ROUNDS + 1):
        losses = np.array([[loss(p, i) for p in models] for i in range(M)])
        if label is not None:
            models = per_cluster(models, label, r, batch)
        groups = k_means(losses, K)

        def total(order: tuple[int, ...], losses: Points = losses, groups: list[int] = groups) -> float:
            return sum(float(losses[i, order[groups[i]]]) for i in range(M))

        best = min(itertools.permutations(range(K)), key=total)
        label = [best[g] for g in groups]
    assert len(set(label)) > 1
    return [min(models, key=lambda p, i=i: loss(p, i)) for i in range(M)]


def pacfl(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    bases = [np.linalg.svd(x.numpy().T)[0][:, : method.basis] for x in X]
    apart = np.array([[np.rad2deg(subspace_angles(a, b)).min() for b in bases] for a in bases])
    np.fill_diagonal(apart, 0.0)
    found = fcluster(linkage(squareform(apart, checks=False), "complete"), method.models, "maxclust")
    label = [sorted(set(found)).index(k) for k in found]
    assert len(set(label)) == method.models
    models = [start[0]] * method.models
    for r in range(1, ROUNDS + 1):
        models = per_cluster(models, label, r, batch)
    return [models[k] for k in label]


def fedgroup(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    first = np.stack([(flat(Local(i, 1, batch).sgd(start[0])[0]) - flat(start[0])).numpy() for i in range(M)])
    u = np.linalg.svd(first.T, full_matrices=False)[0][:, : method.models]
    label = k_means(first @ u / np.linalg.norm(first, axis=1, keepdims=True), method.models)
    assert len(set(label)) > 1
    models = [start[0]] * method.models
    for r in range(1, ROUNDS + 1):
        models = per_cluster(models, label, r, batch)
    return [models[k] for k in label]


CLUSTERING: dict[str, Callable[[Any, list[Weights], int, Run], Served]] = {"clove": clove, "pacfl": pacfl, "fedgroup": fedgroup}
