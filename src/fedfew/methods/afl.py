"""AFL: one model for the worst mixture of clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfew.local import Local
from fedfew.methods.allowed import NotNegative
from fedfew.methods.base import Fresh, Outcome, Reply
from fedfew.methods.fedavg import FedAvg
from fedfew.stack import Tree, add, branch, leaves, scaled, subtract, tensor, tree_map
from fedfew.weighted_mean import WeightedMean


@dataclass(frozen=True)
class AFL(FedAvg):
    """Agnostic federated learning (Mohri et al. 2019, "Agnostic Federated Learning", Algorithm 1): the least over w of the
    largest Σ_i λ_i·F_i(w) over λ in the simplex. The server keeps λ, one weight per client. It moves the model by the clients'
    updates, weighted by λ_i, and λ by a gradient step uphill: λ ← projection to the simplex of λ + γ/M·(F_1, …, F_M). F_i is the
    loss of the received model on all training data of client i. Updates are those of local epochs; the paper takes one gradient.

    Clients that are absent keep their weight: among those of a round λ is scaled to its sum over them.
    """

    step: NotNegative = 0.1
    """γ, the step of λ, in units of 1/M. 0: all clients count alike; large: the worst client alone. Default 0.1."""

    name: ClassVar[str] = "afl"
    summary: ClassVar[str] = "FedAvg for the worst mixture of clients, whose weights the server learns"
    when: ClassVar[str] = "one model, and no client may be left behind; few clients, since one may take all the weight"
    notes: ClassVar[frozenset[str]] = frozenset({"weights"})

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        model, own = super().init(fresh, clients)
        weights = torch.full((clients,), 1 / clients, dtype=torch.float64, device=leaves(model)[0].device)
        return {"model": model, "weights": weights}, own

    def dispatch(self, server: Tree, clients: Tensor) -> Tree:
        """The model, and the client's own weight."""
        weights = tensor(server, "weights")
        return {
            "model": tree_map(lambda t: t[None].expand(len(clients), *[-1] * t.ndim), branch(server, "model")),
            "weight": weights[clients.to(weights.device)][:, None],
        }

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        model = branch(received, "model")
        losses = local.losses(model)
        trained, _ = local.train(model)
        weight = tensor(received, "weight") / local.share[:, None]  # the mean of a round is by number of samples
        parameters, buffers = local.split(subtract(trained, model))
        update: Tree = {"parameters": scaled(parameters, weight), "buffers": buffers, "weight": weight}
        reply = Reply(update, losses, local.counts)
        return Outcome(reply, own, adapted=trained)

    def absorb(self, server: Tree, clients: Tensor, reply: Reply) -> Tree:
        """λ_i + γ/M·F_i; the projection follows when all have answered."""
        weights = tensor(server, "weights").clone()
        at = clients.to(weights.device)
        weights[at] += self.step / len(weights) * reply.losses[:, 0].to(weights)
        return server | {"weights": weights}

    def aggregate(self, server: Tree, mean: WeightedMean) -> Tree:
        """w ← w + Σ_i λ_i·Δ_i / Σ_i λ_i over the clients of the round; BatchNorm's statistics are averaged by samples."""
        moved = mean.mean()
        whole = tensor(moved, "weight")
        step = scaled(branch(moved, "parameters"), torch.where(whole > 0, 1 / whole, 0.0)) | branch(moved, "buffers")
        return {"model": add(branch(server, "model"), step), "weights": to_simplex(tensor(server, "weights"))}

    def serve(self, received: Tree, own: Tree) -> Tree:
        return branch(received, "model")

    def server_models(self, server: Tree) -> Tree:
        return branch(server, "model")


def to_simplex(v: Tensor) -> Tensor:
    """The nearest point whose entries are ≥ 0 and sum to one: entries less a common number, or 0."""
    v = v - v.max()  # the same point; beside a forged loss of 10³⁸ the 1 below would be lost
    ordered = v.sort(descending=True).values
    excess = (ordered.cumsum(0) - 1) / torch.arange(1, len(v) + 1, device=v.device)
    less = excess[(ordered > excess).nonzero()[:, 0].max()]
    return (v - less).clamp_min(0)
