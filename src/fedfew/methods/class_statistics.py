"""Statistics of the features of each class at a stack of clients."""

from __future__ import annotations

import torch
from torch import Tensor

from fedfew.local import Local
from fedfew.stack import Tree, tensor
from fedfew.util.simplex import least_quadratic_form


def statistics(body: Tree, head: Tree, local: Local) -> tuple[Tensor, Tensor, Tensor]:
    """Of the clients' features z: Σ_{class c} z / n_i [C, classes, d], n_i,c / n_i [C, classes], and V_i [C]."""
    name = name_of(head)
    z, n = local.features(body | head, name), local.counts
    classes = torch.arange(tensor(head, f"{name}.weight").shape[2], device=z.device)
    of_class = (local.labels[..., None] == classes).to(z.dtype)  # [C, longest, classes]
    moments, shares = of_class.mT @ z / n[:, None, None], of_class.sum(1) / n[:, None]
    variance = (z.square().sum((1, 2)) / n - moments.square().sum((1, 2))) / n
    return moments, shares, variance.clamp_min(0)


def name_of(head: Tree) -> str:
    return next(iter(head)).rpartition(".")[0]


def combination(moments: Tensor, variance: Tensor) -> Tensor:
    """FedPAC's weights α [m, m] for the heads of m clients, a row per client: see its docstring."""
    h, v = moments.double().flatten(1), variance.double().diag()
    return torch.stack([least_quadratic_form(v + (mine - h) @ (mine - h).T) for mine in h])
