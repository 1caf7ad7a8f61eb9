"""What CFL and FeSEM have in common: the server keeps which cluster each client is in, and every client's newest update."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfew.axes import drop_model_axis
from fedfew.methods.allowed import NumberOfModels
from fedfew.methods.base import Fresh, Reply
from fedfew.methods.clusters import Clusters
from fedfew.methods.collected import model_of, moved
from fedfew.stack import Tree, branch, leaves, put, stack, take, tensor, tree_map
from fedfew.weighted_mean import WeightedMean


@dataclass(frozen=True)
class ServerClusters(Clusters):
    """At most K models; a client trains the model of its cluster, and the server decides on the clusters by single updates. All
    start in cluster 0, from one initial model. It is no method by itself."""

    models: NumberOfModels = 4
    """K, the largest number of clusters. 1: FedAvg. Default 4."""

    served: ClassVar[str] = "the model of the client's cluster"
    adapted: ClassVar[str] = "the model of the client's cluster after its local epochs"
    notes: ClassVar[frozenset[str]] = frozenset({"cluster", "updates", "samples", "answered"})

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        model = fresh(0)
        device = leaves(model)[0].device
        parts: Tree = {
            "parameters": {name: t for name, t in model.items() if name not in fresh.buffers},
            "buffers": {name: t for name, t in model.items() if name in fresh.buffers},
        }
        server: Tree = {
            "models": stack([model] * self.models),
            "cluster": torch.zeros(clients, dtype=torch.int64, device=device),
            "updates": tree_map(lambda t: t.new_zeros(clients, *t.shape), parts),
            "samples": torch.zeros(clients, dtype=torch.int64, device=device),  # 0: no update yet
            "answered": torch.zeros(clients, dtype=torch.int64, device=device),  # in this round
        }
        return server, {}

    def dispatch(self, server: Tree, clients: Tensor) -> Tree:
        cluster = tensor(server, "cluster")
        return tree_map(lambda t: t[cluster[clients.to(cluster.device)]][:, None], branch(server, "models"))

    def absorb(self, server: Tree, clients: Tensor, reply: Reply) -> Tree:
        changed = tree_map(torch.clone, {name: server[name] for name in ("updates", "samples", "answered")})
        new: Tree = {"updates": drop_model_axis(reply.update), "samples": reply.samples}
        put(changed, clients, new | {"answered": torch.ones_like(reply.samples)})
        return server | changed

    def aggregate(self, server: Tree, mean: WeightedMean) -> Tree:
        """Each model moves by the mean, by number of samples, of those of its cluster that answered; then clusters may change."""
        cluster, present = tensor(server, "cluster"), tensor(server, "answered") > 0
        updates, samples = model_of(branch(server, "updates")), tensor(server, "samples")
        models = moved(branch(server, "models"), cluster.where(present, -1), updates, samples)
        for k in range(1, self.models):  # those not in use are as model 0: averages over rounds then begin with something trained
            if not bool((cluster == k).any()):
                put(models, torch.tensor([k]), take(tree_map(torch.clone, models), slice(1)))
        after = server | {"models": models, "answered": torch.zeros_like(cluster)}
        return self.reclustered(after)

    @abstractmethod
    def reclustered(self, server: Tree) -> Tree:
        """The server's state with the clusters of the next round."""

    def assigned(self, server: Tree) -> Tensor:
        return tensor(server, "cluster")

    def server_models(self, server: Tree) -> Tree:
        return take(branch(server, "models"), slice(int(tensor(server, "cluster").max()) + 1))


def products(updates: Tree) -> Tensor:
    """⟨Δ_i, Δ_j⟩ of updates ``[m, …]``, in double precision."""
    flat = [t.reshape(len(t), -1).double() for t in leaves(updates)]
    return torch.stack([t @ t.T for t in flat]).sum(0)
