"""FedMGDA+: one model that moves in a direction which is good for every client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfew.local import Local
from fedfew.methods.allowed import Positive, ZeroToOne
from fedfew.methods.base import Fresh, Outcome, Reply
from fedfew.methods.collected import collect, collected
from fedfew.methods.fedavg import FedAvg
from fedfew.methods.server_clusters import products
from fedfew.stack import Tree, add, branch, subtract, tensor, tree_map
from fedfew.util.simplex import least_within
from fedfew.weighted_mean import WeightedMean

SHORTEST = 1e-30  # of the longest update: one over the length of a shorter one could be more than float32 holds


@dataclass(frozen=True)
class FedMGDA(FedAvg):
    """Common descent (Hu et al. 2022, "Federated Learning Meets Multi-Objective Optimization", FedMGDA+). The server moves the
    model by the shortest Σ_i λ_i·Δ_i/‖Δ_i‖ that weights λ in the simplex can give, with every λ_i within ε of the client's share
    of the samples. Where λ is free (ε = 1), no client's loss grows by a small step in that direction.

    The step is the mean length of the updates times ``server_step``. The paper has a step size of its own, whose right value
    depends on the model and the learning rate.
    """

    epsilon: ZeroToOne = 0.1
    """ε, how far a weight may be from the client's share of the samples. 0: FedAvg's weights; 1: free. Default 0.1."""
    normalise: bool = True
    """Divide every update by its length first, so that no client counts for more by a long one (the "+"). Off: FedMGDA, which
    with epsilon 0 and server_step 1 is FedAvg."""
    server_step: Positive = 2.0
    """What the shortest mean is multiplied by, beside the mean length of the updates. Default 2, since it is short."""

    name: ClassVar[str] = "fedmgda"
    summary: ClassVar[str] = "FedAvg whose clients' weights make the step one that is good for all of them"
    when: ClassVar[str] = "one model, the worst client matters, no client may lose by a round; the server may see single updates"

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        model, own = super().init(fresh, clients)
        return {"model": model}, own

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        model = branch(received, "model")
        trained, losses = local.train(model)
        parameters, buffers = local.split(subtract(trained, model))
        return Outcome(Reply({"parameters": parameters, "buffers": buffers}, losses, local.counts), own, adapted=trained)

    @property
    def averages(self) -> bool:
        return False  # its weights are its own

    def absorb(self, server: Tree, clients: Tensor, reply: Reply) -> Tree:
        return collect(server, clients, reply)

    def aggregate(self, server: Tree, mean: WeightedMean) -> Tree:
        """BatchNorm's statistics are averaged by number of samples."""
        server, replies = collected(server)
        updates = branch(branch(replies, "update"), "parameters")
        by = self.weights(products(updates).cpu(), tensor(replies, "samples").cpu().double())
        step = tree_map(lambda t: torch.tensordot(by.to(t), t, 1)[None], updates)
        return {"model": add(branch(server, "model"), step | branch(mean.mean(), "buffers"))}

    def weights(self, gram: Tensor, samples: Tensor) -> Tensor:
        """What each update is multiplied by, [m], given ⟨Δ_i, Δ_j⟩ and the numbers of samples."""
        share = samples / samples.sum()
        length = gram.diagonal().clamp_min(0).sqrt() if self.normalise else torch.ones_like(share)
        counts = length > SHORTEST * length.max()  # of an update that is 0: 0
        unit = torch.where(counts, 1 / length.clamp_min(torch.finfo(gram.dtype).tiny), 0.0)
        bounds = (share - self.epsilon).clamp_min(0), (share + self.epsilon).clamp_max(1)
        weights = least_within(gram * unit * unit[:, None], share, *bounds)
        return self.server_step * float(share @ length) * weights * unit

    def serve(self, received: Tree, own: Tree) -> Tree:
        return branch(received, "model")

    def server_models(self, server: Tree) -> Tree:
        return branch(server, "model")
