"""CLoVE: clients are clustered by their losses under all K models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedfew.local import Local, best_model
from fedfew.methods.allowed import NumberOfModels
from fedfew.methods.base import Family, Fresh, Outcome, Reply
from fedfew.methods.clusters import Clusters
from fedfew.methods.collected import collect, collected, model_of, moved
from fedfew.methods.k_means import grouped
from fedfew.stack import Tree, branch, leaves, stack, tensor, tree_map
from fedfew.weighted_mean import WeightedMean


@dataclass(frozen=True)
class CLoVE(Clusters):
    """Clustering of loss vector embeddings (Bhatia et al. 2025, "CLoVE: Personalized Federated Learning through Clustering of
    Loss Vector Embeddings"). A client is described by its K losses under the K models. Clients of one kind have similar losses
    even under models that fit none of them, so k-means over the loss vectors finds the groups where IFCA, by the least loss,
    needs models that are nearly right. Each group gets the model of its own that makes the sum of losses least (a matching).

    The paper sends losses and then updates within a round. Here both are one message: a group is made from the losses of one
    round and trains in the next. In its first round a client only finds its group.
    """

    models: NumberOfModels = 3
    """K, the number of groups. 1: FedAvg, one round late. Default 3."""

    name: ClassVar[str] = "clove"
    family: ClassVar[Family] = "few models"
    summary: ClassVar[str] = "K groups of clients with similar losses under all K models; each group trains one of them"
    when: ClassVar[str] = "clear groups, their number known, where IFCA leaves models unused"
    served: ClassVar[str] = "of the K server models, the one with the least loss on the client's training data"
    adapted: ClassVar[str] = "the model of the client's group after the client's local epochs"
    notes: ClassVar[frozenset[str]] = frozenset({"cluster"})

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        models = stack([fresh(k) for k in range(self.models)])
        return {"models": models, "cluster": torch.full((clients,), -1, device=leaves(models)[0].device)}, {}

    def dispatch(self, server: Tree, clients: Tensor) -> Tree:
        """All models, and which one is the client's (−1: none yet)."""
        cluster = tensor(server, "cluster")
        models = tree_map(lambda t: t[None].expand(len(clients), *[-1] * t.ndim), branch(server, "models"))
        return {"models": models, "cluster": cluster[clients.to(cluster.device)]}

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        models, cluster = branch(received, "models"), tensor(received, "cluster")
        losses, everyone = local.losses(models), torch.arange(len(local), device=cluster.device)
        chosen = torch.where(cluster >= 0, cluster, best_model(losses))
        model = tree_map(lambda t: t[everyone, chosen][:, None], models)
        outcome = super().client(model, own, local)
        return replace(outcome, reply=replace(outcome.reply, losses=losses))

    def absorb(self, server: Tree, clients: Tensor, reply: Reply) -> Tree:
        return collect(server, clients, reply)

    def aggregate(self, server: Tree, mean: WeightedMean) -> Tree:
        server, replies = collected(server)
        clients, cluster = tensor(replies, "clients"), tensor(server, "cluster").clone()
        update, samples = model_of(branch(replies, "update")), tensor(replies, "samples")
        models = moved(branch(server, "models"), cluster[clients], update, samples)
        cluster[clients] = matched(tensor(replies, "losses").cpu().double()).to(cluster)
        return {"models": models, "cluster": cluster}

    def serve(self, received: Tree, own: Tree) -> Tree:
        return branch(received, "models")

    def server_models(self, server: Tree) -> Tree:
        return branch(server, "models")


def matched(losses: Tensor) -> Tensor:
    """The model [m] of each client with these losses ``[m, K]``: clients are grouped by k-means, and every group gets another
    model, such that the sum of all losses is least."""
    from scipy.optimize import linear_sum_assignment  # loads slowly, and no other method needs it

    losses = losses.nan_to_num(posinf=float(losses[losses.isfinite()].max()))  # +inf: a model that the client cannot use
    groups = grouped(losses, losses.shape[1])
    total = torch.stack([losses[groups == g].sum(0) for g in range(losses.shape[1])])
    _, model = linear_sum_assignment(total.numpy())
    return torch.from_numpy(model)[groups]
