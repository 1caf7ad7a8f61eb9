"""Subspaces of clients' data, the angles between them, and clusters by these."""

from __future__ import annotations

import torch
from torch import Tensor


def subspace(x: Tensor, number: int) -> Tensor:
    """The first left singular vectors of the matrix whose columns are samples ``x[n, d]``: ``[number, d]``, 0 where there are
    fewer."""
    _, _, vectors = torch.linalg.svd(x.double(), full_matrices=False)
    found = torch.zeros(number, x.shape[1], dtype=vectors.dtype, device=x.device)
    found[: len(vectors)] = vectors[:number]
    return found.to(x.dtype)


def principal_angles(u: Tensor) -> Tensor:
    """Between subspaces with these orthonormal vectors ``[m, p, d]``, in degrees: ``[m, m, p]``, the smallest first."""
    cosines = torch.linalg.svdvals(torch.einsum("ipd,jqd->ijpq", u, u)).clamp(0, 1)
    angles: Tensor = cosines.arccos().rad2deg()
    return angles


def merged(distance: Tensor, most: int, beta: float) -> Tensor:
    """Clusters [m] by complete linkage of ``distance[m, m]``, numbered by their first member: at most so many, and none two of
    which are no farther than β apart."""
    label = torch.arange(len(distance))
    apart = distance.clone().fill_diagonal_(torch.inf)
    for number in range(len(distance), 1, -1):
        at = int(apart.argmin())
        a, b = sorted((at // len(apart), at % len(apart)))
        if number <= most and float(apart[a, b]) > beta:
            break
        label[label == b] = a
        apart[a] = apart[:, a] = torch.maximum(apart[a], apart[b])
        apart[b] = apart[:, b] = torch.inf
        apart[a, a] = torch.inf
    return torch.tensor([sorted(set(label.tolist())).index(k) for k in label.tolist()])
