"""FedGroup: clients are grouped by the directions of their first updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfew.methods.base import Family, Fresh
from fedfew.methods.k_means import grouped
from fedfew.methods.placed_once import PlacedOnce
from fedfew.methods.server_clusters import products
from fedfew.stack import Tree, branch, named_leaves, stack, tree_map


@dataclass(frozen=True)
class FedGroup(PlacedOnce):
    """Grouping by decomposed cosine similarity (Duan et al. 2021, "FedGroup: Efficient Federated Learning via Decomposed
    Similarity-Based Clustering", Algorithms 1 and 2). The updates of the first round, all from the initial model, are decomposed
    into K directions (the first singular vectors of the matrix of updates). A client is described by the cosines of its update
    with these, and k-means makes K groups of the descriptions. A client that comes later joins the group whose mean first update
    points most nearly as its own does.
    """

    name: ClassVar[str] = "fedgroup"
    family: ClassVar[Family] = "few models"
    summary: ClassVar[str] = "K groups, made once by the directions of the clients' first updates"
    when: ClassVar[str] = "clear groups without label skew, known in number, that stay; the server may see single updates"
    notes: ClassVar[frozenset[str]] = PlacedOnce.notes | {"directions"}

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        server, own = super().init(fresh, clients)
        parameters: Tree = {name: torch.zeros_like(t) for name, t in named_leaves(fresh(0)) if name not in fresh.buffers}
        return server | {"directions": stack([parameters] * self.models)}, own

    def clustered(self, server: Tree, clients: Tensor, update: Tree) -> tuple[Tree, Tensor]:
        parameters = branch(update, "parameters")
        groups = grouped(decomposed(products(parameters), self.models), self.models)
        member = (groups == torch.arange(self.models, device=groups.device)[:, None]).double()  # [K, m]
        means = member / member.sum(1, keepdim=True).clamp_min(1)
        return server | {"directions": tree_map(lambda t: torch.tensordot(means.to(t), t, 1), parameters)}, groups

    def joined(self, server: Tree, clients: Tensor, update: Tree) -> tuple[Tree, Tensor]:
        both = tree_map(lambda *t: torch.cat(t), branch(update, "parameters"), branch(server, "directions"))
        gram, new = products(both), len(clients)
        length = gram.diagonal().clamp_min(0).sqrt()[new:]
        cosine = gram[:new, new:] / length.clamp_min(torch.finfo(gram.dtype).tiny)  # but for the client's own length
        return server, cosine.masked_fill(length == 0, -torch.inf).argmax(1)  # of length 0: a group without clients


def decomposed(gram: Tensor, number: int) -> Tensor:
    """cos(Δ_i, u_k) ``[m, K]`` for the first K left singular vectors u_k of the matrix with the columns Δ_i, from ⟨Δ_i, Δ_j⟩.

    With ⟨Δ_i, Δ_j⟩ = V·S²·Vᵀ it is ⟨Δ_i, u_k⟩ = s_k·V_ik. The sign of u_k is arbitrary, and does not matter for distances.
    """
    squares, vectors = torch.linalg.eigh(gram)
    largest = squares.argsort(descending=True)[:number]
    projected = vectors[:, largest] * squares[largest].clamp_min(0).sqrt()
    cosines: Tensor = projected / gram.diagonal().clamp_min(torch.finfo(gram.dtype).tiny).sqrt()[:, None]
    return cosines
