"""What PACFL and FedGroup have in common: the server puts a client into a cluster once, after the client's first round."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfew.methods.allowed import NumberOfModels
from fedfew.methods.base import Fresh, Reply
from fedfew.methods.clusters import Clusters
from fedfew.methods.collected import collect, collected, model_of, moved
from fedfew.stack import Tree, branch, leaves, stack, take, tensor, tree_map
from fedfew.weighted_mean import WeightedMean


@dataclass(frozen=True)
class PlacedOnce(Clusters):
    """At most K models, which begin alike. The clients of the first round are put into clusters, and the model of each cluster
    moves by the mean of its clients' updates from then on: as if the clusters had been known before the first round. A client
    that takes part later begins with the initial model; its first reply only says where it belongs. It is no method by itself."""

    models: NumberOfModels = 4
    """K, the largest number of clusters. 1: FedAvg, where all clients take part in the first round. Default 4."""

    served: ClassVar[str] = "the model of the client's cluster; before its first round, the initial model"
    adapted: ClassVar[str] = "the model of the client's cluster after its local epochs"
    notes: ClassVar[frozenset[str]] = frozenset({"start", "cluster"})

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        model = fresh(0)
        cluster = torch.full((clients,), -1, device=leaves(model)[0].device)  # −1: not known yet
        return {"models": stack([model] * self.models), "start": stack([model]), "cluster": cluster}, {}

    def dispatch(self, server: Tree, clients: Tensor) -> Tree:
        cluster = tensor(server, "cluster")
        at = cluster[clients.to(cluster.device)]
        choices = tree_map(lambda *t: torch.cat(t), branch(server, "models"), branch(server, "start"))
        return tree_map(lambda t: t[at][:, None], choices)  # −1 is the last one, the initial model

    def absorb(self, server: Tree, clients: Tensor, reply: Reply) -> Tree:
        return collect(server, clients, reply)

    def aggregate(self, server: Tree, mean: WeightedMean) -> Tree:
        server, replies = collected(server)
        clients, update, samples = tensor(replies, "clients"), branch(replies, "update"), tensor(replies, "samples")
        before = tensor(server, "cluster")
        new, first = before[clients] < 0, bool((before < 0).all())
        cluster = before.clone()
        if bool(new.any()):
            server, found = (self.clustered if first else self.joined)(server, clients[new], take(update, new))
            cluster[clients[new]] = found.to(cluster)
        by = (cluster if first else before)[clients]
        return server | {"models": moved(branch(server, "models"), by, model_of(update), samples), "cluster": cluster}

    @abstractmethod
    def clustered(self, server: Tree, clients: Tensor, update: Tree) -> tuple[Tree, Tensor]:
        """The server's state and the clusters [m] of the clients of the first round, by what they sent."""

    @abstractmethod
    def joined(self, server: Tree, clients: Tensor, update: Tree) -> tuple[Tree, Tensor]:
        """The same for clients that come later."""

    def assigned(self, server: Tree) -> Tensor:
        return tensor(server, "cluster")

    def server_models(self, server: Tree) -> Tree:
        return take(branch(server, "models"), slice(max(1, int(tensor(server, "cluster").max()) + 1)))
