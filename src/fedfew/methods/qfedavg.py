"""q-FedAvg: one model, in which clients with a high loss count for more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfew.local import Local
from fedfew.methods.allowed import NotNegative
from fedfew.methods.base import Outcome, Reply
from fedfew.methods.fedavg import FedAvg
from fedfew.stack import Tree, add, branch, leaves, scaled, subtract, tensor
from fedfew.weighted_mean import WeightedMean


@dataclass(frozen=True)
class QFedAvg(FedAvg):
    """Minimises Σ_i p_i·F_i(w)^(q+1)/(q + 1) (Li et al. 2020, "Fair Resource Allocation in Federated Learning", Algorithm 2).
    Client i's update Δ_i counts p_i·F_i^q, and the server divides their sum by Σ_i p_i·(q·F_i^(q−1)·‖Δ_i‖²/lr + F_i^q), which
    shortens the step where the objective is steep. F_i is the loss of the received model on all training data of the client.

    p_i is the client's share of the samples, where the paper draws clients with this probability.
    """

    q: NotNegative = 0.1
    """How much clients with a high loss count. 0: FedAvg; → ∞: the worst client alone, in ever shorter steps. Default 0.1."""

    name: ClassVar[str] = "qfedavg"
    summary: ClassVar[str] = "FedAvg in which clients with a high loss count for more"
    when: ClassVar[str] = "one model whose loss should be more alike over clients, at some cost of the mean"

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        losses = local.losses(received)
        trained, _ = local.train(received)
        parameters, buffers = local.split(subtract(trained, received))
        squared = torch.stack([t.reshape(*t.shape[:2], -1).square().sum(2) for t in leaves(parameters)]).sum(0)
        slowed = self.q * squared / (local.lr * positive(losses))  # q·F^(q−1)·‖Δ‖²/lr as a part of F^q
        reply = Reply({"parameters": parameters, "buffers": buffers, "slowed": slowed}, losses, local.counts)
        return Outcome(reply, own, adapted=trained)

    def log_weights(self, reply: Reply, share: Tensor, clients: Tensor) -> Tensor:
        """log(p_i·F_i^q)."""
        return super().log_weights(reply, share, clients).cpu() + self.q * positive(reply.losses.cpu().double()).log()

    def aggregate(self, server: Tree, mean: WeightedMean) -> Tree:
        """BatchNorm's statistics are averaged with the same weights, without the shorter step."""
        moved = mean.mean()
        new = scaled(branch(moved, "parameters"), 1 / (1 + tensor(moved, "slowed"))) | branch(moved, "buffers")
        return add(server, new)


def positive(losses: Tensor) -> Tensor:
    """A loss may round to 0, whose logarithm would leave the client out."""
    return losses.clamp_min(torch.finfo(torch.float32).tiny)
