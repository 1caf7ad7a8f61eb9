"""FeSEM: clients are clustered by the distance of their models to K centres."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfew.axes import add_model_axis
from fedfew.methods.base import Family, Reply
from fedfew.methods.k_means import LLOYD, k_means, spread
from fedfew.methods.server_clusters import ServerClusters
from fedfew.stack import Tree, add, branch, leaves, put, take, tensor, tree_map
from fedfew.weighted_mean import WeightedMean


@dataclass(frozen=True)
class FeSEM(ServerClusters):
    """Multi-centre federated learning by stochastic expectation maximisation (Long et al. 2023, "Multi-Center Federated Learning:
    Clients Clustering for Better Personalization", Algorithm 1). The server keeps every client's newest model. After each round
    a client joins the centre nearest to its model (E-step), and each centre becomes the mean of the models that joined it, by
    number of samples (M-step). A client trains the centre that it joined.

    All begin with one model. After the first round the centres are found by k-means over the clients' models, which begins with
    models far from each other. Distances are over parameters, not BatchNorm's statistics.
    """

    name: ClassVar[str] = "fesem"
    family: ClassVar[Family] = "few models"
    summary: ClassVar[str] = "K centres; each client trains the one nearest to its last model"
    when: ClassVar[str] = "clear groups, their number known, and clients cannot compare K models themselves"

    @property
    def not_optimised(self) -> str:
        return "makes its centres anew from its clients' models"

    def absorb(self, server: Tree, clients: Tensor, reply: Reply) -> Tree:
        """What is kept of a client is its trained model."""
        received = self.dispatch(server, clients)
        parts: Tree = {name: {n: received[n] for n in branch(reply.update, name)} for name in ("parameters", "buffers")}
        return super().absorb(server, clients, Reply(add(parts, reply.update), reply.losses, reply.samples))

    def aggregate(self, server: Tree, mean: WeightedMean) -> Tree:
        return self.reclustered(server | {"answered": torch.zeros_like(tensor(server, "answered"))})

    def reclustered(self, server: Tree) -> Tree:
        seen = (tensor(server, "samples") > 0).nonzero()[:, 0]
        models = branch(branch(server, "updates"), "parameters") | branch(branch(server, "updates"), "buffers")
        kept, samples = take(models, seen), tensor(server, "samples")[seen]
        positions = flat(take(branch(branch(server, "updates"), "parameters"), seen))
        names = branch(branch(server, "updates"), "parameters").keys()
        centres = flat({name: branch(server, "models")[name] for name in names})
        first = not bool((centres != centres[:1]).any())  # all centres are the initial model still
        if first:
            centres = positions[spread(positions, self.models)]
        joined, _ = k_means(positions, centres, samples, LLOYD if first else 1)
        new = tree_map(torch.clone, branch(server, "models"))
        for k in range(self.models):
            at = (joined == k).nonzero()[:, 0]
            if len(at):
                average = WeightedMean(1)
                average.add(samples[at].double().log()[:, None], add_model_axis(take(kept, at)))
                like = take(new, slice(k, k + 1))
                put(new, torch.tensor([k]), add(tree_map(torch.zeros_like, like), average.mean()))
        cluster = tensor(server, "cluster").clone()
        cluster[seen] = joined.to(cluster.device)
        return server | {"models": new, "cluster": cluster}

    def server_models(self, server: Tree) -> Tree:
        return branch(server, "models")


def flat(models: Tree) -> Tensor:
    """Models ``[m, …]`` as vectors, in double precision."""
    return torch.cat([t.reshape(len(t), -1).double() for t in leaves(models)], 1)
