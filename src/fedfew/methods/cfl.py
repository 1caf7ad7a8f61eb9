"""CFL: clusters are split where the clients' updates disagree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfew.methods.allowed import BelowOne, NotNegative
from fedfew.methods.base import Family
from fedfew.methods.server_clusters import ServerClusters, products
from fedfew.stack import Tree, branch, put, take, tensor, tree_map


@dataclass(frozen=True)
class CFL(ServerClusters):
    """Clustered federated learning (Sattler et al. 2020, "Clustered Federated Learning: Model-Agnostic Distributed Multitask
    Optimization under Privacy Constraints", Algorithms 1 to 3). All clients begin in one cluster, which trains by FedAvg. Where
    the mean of a cluster's updates has become short while single updates are still long, the cluster is split in two, such that
    the largest cosine similarity between updates of different halves is as small as possible; both halves go on from its model.

    Lengths are compared with each other, ‖mean‖ < ε·max‖Δ_i‖, where the paper has two thresholds that depend on model and
    learning rate. A cluster is split only when the server has an update of every member since it was formed.
    """

    epsilon: NotNegative = 0.4
    """ε: how short the mean of the updates must be, as a part of the longest one. 0: never split, FedAvg. Default 0.4."""
    gamma: BelowOne = 0.0
    """γ: split only where √((1 − α)/2) > γ for the largest similarity α across the halves (the paper's bound on noise)."""

    name: ClassVar[str] = "cfl"
    family: ClassVar[Family] = "few models"
    summary: ClassVar[str] = "one cluster of clients, split in two wherever the updates disagree"
    when: ClassVar[str] = "clear groups of an unknown number, most clients take part, and the server may see single updates"

    def without_effect(self, clients: int, layers: int, optimizer: str) -> list[str]:
        if self.models == 1:
            return self.unused("models is 1", "epsilon", "gamma")
        return self.unused("epsilon is 0", "models", "gamma") if self.epsilon == 0 else []

    def reclustered(self, server: Tree) -> Tree:
        cluster, samples = tensor(server, "cluster").clone(), tensor(server, "samples").clone()
        models = tree_map(torch.clone, branch(server, "models"))
        for k in range(int(cluster.max()) + 1):
            number = int(cluster.max()) + 1
            members = (cluster == k).nonzero()[:, 0]
            if number == self.models or len(members) < 2 or not bool((samples[members] > 0).all()):
                continue
            updates = take(branch(branch(server, "updates"), "parameters"), members)
            half = self.split(products(updates).cpu(), samples[members].cpu().double())
            if half is None:
                continue
            cluster[members[half.to(members.device)]] = number
            samples[members] = 0  # updates of the old cluster do not count for the new ones
            put(models, torch.tensor([number]), take(branch(server, "models"), slice(k, k + 1)))
        return server | {"cluster": cluster, "samples": samples, "models": models}

    def rearranged(self, average: Tree, before: Tree, after: Tree) -> Tree:
        old, new = tensor(before, "cluster"), tensor(after, "cluster")
        models = tree_map(torch.clone, branch(average, "models"))
        for i in (old != new).nonzero()[:, 0].tolist():
            put(models, new[i : i + 1], take(branch(average, "models"), old[i : i + 1]))
        return average | {"models": models}

    def split(self, gram: Tensor, samples: Tensor) -> Tensor | None:
        """Who leaves the cluster, [m] of booleans: the half with fewer samples; None where it stays together."""
        share = samples / samples.sum()
        length = gram.diagonal().clamp_min(0).sqrt()
        if not float((share @ gram @ share).clamp_min(0).sqrt()) < self.epsilon * float(length.max()):
            return None
        tiny = torch.finfo(gram.dtype).tiny
        half, across = bipartition(gram / (length[:, None] * length).clamp_min(tiny))
        if not ((1 - across) / 2) ** 0.5 > self.gamma:
            return None
        return half if float(samples[half].sum()) <= float(samples[~half].sum()) else ~half


def bipartition(similarity: Tensor) -> tuple[Tensor, float]:
    """The two parts between which the largest similarity is as small as it can be, and that similarity: a maximum spanning tree
    is cut at its weakest edge."""
    m = len(similarity)
    nearest, parent = similarity[0].clone(), torch.zeros(m, dtype=torch.int64)
    joined = torch.zeros(m, dtype=torch.bool)
    joined[0] = True
    edges: list[tuple[int, int, float]] = []
    for _ in range(m - 1):
        new = int(nearest.masked_fill(joined, -torch.inf).argmax())
        edges.append((new, int(parent[new]), float(nearest[new])))
        joined[new] = True
        closer = similarity[new] > nearest
        nearest, parent = torch.where(closer, similarity[new], nearest), parent.masked_fill(closer & ~joined, new)
    weakest = min(range(m - 1), key=lambda e: edges[e][2])
    beyond = torch.zeros(m, dtype=torch.bool)
    for at, (child, above, _) in enumerate(edges):
        beyond[child] = at == weakest or beyond[above]
    return beyond, edges[weakest][2]
