"""What SCAFFOLD and FedDyn have in common: one model, a variate beside it on the server, and one at every client.

A variate has the shape of the model's parameters and shifts the gradient of a client's local steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfew.axes import copies
from fedfew.methods.base import Fresh, Reply
from fedfew.methods.fedavg import FedAvg
from fedfew.stack import Tree, branch, leaves, named_leaves, stack, tensor
from fedfew.weighted_mean import WeightedMean


@dataclass(frozen=True)
class WithVariates(FedAvg):
    """FedAvg with variates, all zero at the start. It is no method by itself."""

    notes: ClassVar[frozenset[str]] = frozenset({"variate", "clients"})

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        model = fresh(0)
        zero: Tree = {name: torch.zeros_like(t) for name, t in named_leaves(model) if name not in fresh.buffers}
        number = torch.tensor([clients], device=leaves(model)[0].device)
        server: Tree = {"model": stack([model]), "variate": stack([zero]), "clients": number}
        return server, copies(zero, clients)

    def log_whole(self, reply: Reply, share: Tensor, clients: Tensor) -> Tensor:
        """One per client: the sum is the number of clients that answered."""
        return torch.zeros(len(clients), dtype=torch.float64)

    def present(self, server: Tree, mean: WeightedMean) -> Tensor:
        """|S|/N, which part of all clients answered, [1]."""
        clients = tensor(server, "clients")
        return mean.log_whole.exp().to(clients.device) / clients

    def serve(self, received: Tree, own: Tree) -> Tree:
        return branch(received, "model")

    def server_models(self, server: Tree) -> Tree:
        return branch(server, "model")
