"""FedRC: FedEM that does not take clients with other labels for clients of another kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedfew.local import Local
from fedfew.methods.base import Fresh, Outcome, Reply
from fedfew.methods.fedem import FedEM
from fedfew.stack import Tree, add, branch, leaves, named_leaves, subtract, tensor
from fedfew.weighted_mean import WeightedMean

RAREST = 1e-3  # no class is taken to be rarer than this in a cluster: its frequency is divided by


@dataclass(frozen=True)
class FedRC(FedEM):
    """Robust clustering (Guo et al. 2024, "FedRC: Tackling Diverse Distribution Shifts Challenge in Federated Learning by Robust
    Clustering", Algorithm 1). As FedEM, but a sample belongs to model k with probability γ_k ∝ ω_k·exp(−loss of model k)/C_k(y),
    where C_k(y) is the part of all samples of cluster k that have the label y. So a model is not preferred for knowing which
    labels are common: clients with other labels stay together, clients for which the same input has another label part.

    For classification. Beside the models, clients send how much of each class they count to each cluster.
    """

    name: ClassVar[str] = "fedrc"
    needs_classes: ClassVar[bool] = True
    summary: ClassVar[str] = "K models, mixed per client; clusters by what labels mean, not by which labels are common"
    when: ClassVar[str] = "groups that differ in what labels mean or in their inputs, and label frequencies differ too"
    served: ClassVar[str] = "the mixture of the K server models by the client's learned weights ω"
    adapted: ClassVar[str] = "the mixture, by the client's new weights ω, of its K locally trained copies"
    notes: ClassVar[frozenset[str]] = frozenset({"classes"})

    @staticmethod
    def learned_mixture(losses: Tensor) -> Tensor | None:
        return None  # it would need the class frequencies of the clusters, which stay with the server

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        models, own = super().init(fresh, clients)
        matrices = [t for name, t in named_leaves(models) if name.endswith("weight") and t.ndim == 3]
        if not matrices:
            raise ValueError("fedrc: the model has no linear layer, whose outputs would be its classes; use fedem")
        number = matrices[-1].shape[1]
        like = leaves(own)[0]
        return {"models": models, "classes": torch.full((self.models, number), 1 / number).to(like)}, own

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        models, classes = branch(received, "models"), tensor(received, "classes")
        losses, labels = local.sample_losses(models), local.labels.clamp_min(0)
        frequency = classes.expand(len(local), -1, -1).gather(2, labels[:, None].expand(-1, self.models, -1))
        gamma = (tensor(own, "pi").log()[..., None] - losses - frequency.log()).softmax(1)
        pi = local.sample_mean(gamma)
        trained, _ = local.train(models, weights=gamma * self.models if self.full_step else gamma)
        each = one_hot(labels, classes.shape[2]).transpose(1, 2)[:, None] * gamma[:, :, None]  # [C, K, classes, longest]
        update: Tree = {"models": subtract(trained, models), "classes": local.sample_mean(each)}
        reply = Reply(update, local.sample_mean(losses).float(), local.counts)
        return Outcome(reply, {"pi": pi}, adapted=trained, mixture=pi)

    def aggregate(self, server: Tree, mean: WeightedMean) -> Tree:
        """C_k(y) of the clients of this round: Σ γ_k over samples with label y, as a part of Σ γ_k. Where that is 0 it stays."""
        moved = mean.mean()
        counted = tensor(moved, "classes")
        total = counted.sum(1, keepdim=True)
        classes = torch.where(total > 0, (counted / total).clamp_min(RAREST), tensor(server, "classes"))
        return {"models": add(branch(server, "models"), branch(moved, "models")), "classes": classes}

    def serve(self, received: Tree, own: Tree) -> Tree:
        return branch(received, "models")

    def server_models(self, server: Tree) -> Tree:
        return branch(server, "models")
