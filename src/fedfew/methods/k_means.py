"""k-means without chance: it begins with points far from each other."""

from __future__ import annotations

import torch
from torch import Tensor

LLOYD = 10  # iterations at most
STARTS = 10  # that are compared


def k_means(points: Tensor, centres: Tensor, weights: Tensor, iterations: int = LLOYD) -> tuple[Tensor, Tensor]:
    """Which centre each of ``points[m, d]`` joins, [m], and the centres ``[K, d]`` after so many iterations from these ones: each
    is the weighted mean of the points that joined it. A centre without points stays where it is."""
    for _ in range(iterations):
        joined = torch.cdist(points, centres).argmin(1)
        centres = torch.stack([
            centre if not bool((joined == k).any()) else weighted(points[joined == k], weights[joined == k])
            for k, centre in enumerate(centres)
        ])  # fmt: skip
    return joined, centres


def weighted(points: Tensor, weights: Tensor) -> Tensor:
    return (weights.double() @ points) / weights.sum()


def spread(points: Tensor, number: int, first: int | None = None) -> Tensor:
    """Which of these points to begin with: ``first``, or the one farthest from the mean, then always the farthest from those
    chosen."""
    far = (points - points.mean(0)).norm(dim=1)
    chosen = [int(far.argmax()) if first is None else first]
    nearest = torch.cdist(points, points[chosen]).amin(1)
    while len(chosen) < number:
        chosen.append(int(nearest.argmax()))
        nearest = torch.minimum(nearest, torch.cdist(points, points[chosen[-1:]])[:, 0])
    return torch.tensor(chosen, device=points.device)


def grouped(points: Tensor, number: int) -> Tensor:
    """Groups of ``points[m, d]``, at most so many, numbered by their first member, [m]. All points count alike. Of several
    starts, from points at different distances from the mean, it is the one with the least sum of squared distances in the end."""
    alike = torch.ones(len(points), dtype=torch.float64, device=points.device)
    order = (points - points.mean(0)).norm(dim=1).argsort(descending=True)
    best, found = torch.inf, torch.zeros_like(order)
    for at in torch.linspace(0, len(points) - 1, min(STARTS, len(points))).round().int().tolist():
        start = points[spread(points, min(number, len(points)), int(order[at]))]
        joined, centres = k_means(points, start, alike)
        spent = float((points - centres[joined]).square().sum())
        if spent < best * (1 - 1e-9):  # equally good ones differ by rounding: the first of them
            best, found = spent, joined
    return _by_first_member(found)


def _by_first_member(groups: Tensor) -> Tensor:
    """The same groups under numbers that do not depend on where k-means began: rounding decides between points equally far."""
    numbers: dict[int, int] = {}
    return torch.tensor([numbers.setdefault(group, len(numbers)) for group in groups.tolist()], device=groups.device)
