"""kNN-Per: a global model, and for every client a memory of its own samples' features."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfew.axes import expanded
from fedfew.local import Local
from fedfew.methods.allowed import AtLeastOne, LayerName, Positive, ZeroToOne
from fedfew.methods.base import Family, Fresh, Outcome, Reply
from fedfew.methods.fedavg import FedAvg
from fedfew.models.memory import EMPTY, KEYS, LABELS, PRIOR, with_memory
from fedfew.models.split import linear_head
from fedfew.stack import Tree, leaves, named_leaves, stack, subtract, tensor, tree_map

MEMORY = (KEYS, LABELS, PRIOR)


@dataclass(frozen=True)
class KNNPer(FedAvg):
    """The global model is trained as in FedAvg; a client predicts with λ·p_kNN + (1 − λ)·p_model, where p_kNN is the vote of the
    k of its own training samples whose features are nearest, each weighing exp(−‖z − z_j‖²/(d·σ)) (Marfoq et al. 2022,
    "Personalized Federated Learning through Local Memorization", Algorithm 1). Features and labels never leave the client.

    The paper fills the memory once, when training has ended, and chooses λ per client on validation data. Here a client fills it
    in every round that it takes part in, with features under the model as received, and λ is one number for all.
    """

    lam: ZeroToOne = 0.3
    """λ, the weight of the neighbours. 0: FedAvg; 1: the neighbours alone."""
    neighbours: AtLeastOne = 5
    """k, how many of the nearest samples vote."""
    sigma: Positive = 0.1
    """σ: the smaller, the more the very nearest count."""
    capacity: AtLeastOne = 500
    """How many samples a client remembers: where it has more, evenly spaced ones."""
    head: LayerName | None = None
    """The linear layer whose inputs are the features, by name. None: the model's last linear layer."""

    name: ClassVar[str] = "knnper"
    family: ClassVar[Family] = "personal parts"
    summary: ClassVar[str] = "one global model, mixed at each client with the votes of its own nearest samples"
    when: ClassVar[str] = "label skew, good features, and no local training may be needed to personalise"
    served: ClassVar[str] = "the global model as received with the client's memory of its samples' features"
    adapted: ClassVar[str] = "the global model after the client's local epochs with the same memory"
    needs_classes: ClassVar[bool] = True

    def head_layer(self, parameters: Mapping[str, Tensor]) -> str | None:
        return linear_head(parameters, self.head)

    def without_effect(self, clients: int, layers: int, optimizer: str) -> list[str]:
        if self.lam == 0:
            return self.unused("lam is 0", "neighbours", "sigma", "capacity", "head")
        if self.capacity == 1:
            return self.unused("capacity is 1", "neighbours", "sigma", "head")
        lines = self.unused("neighbours is 1", "sigma") if self.neighbours == 1 else []
        return lines + self.beyond("neighbours", self.capacity, f"capacity is {self.capacity}")

    def around(self, factory: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        return lambda: with_memory(factory(), self.capacity, self.neighbours, self.lam, self.sigma, self.head)

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        model = {name: t for name, t in named_leaves(fresh(0)) if name not in MEMORY}
        weight = model[f"{linear_head(model, self.head)}.weight"]
        keys = weight.new_zeros(clients, self.capacity, weight.shape[1])
        labels = torch.full(keys.shape[:2], EMPTY, device=weight.device)
        return stack([dict(model)]), {KEYS: keys, LABELS: labels, PRIOR: weight.new_zeros(clients, len(weight))}

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        trained, losses = local.train(received)
        model = {name: t[0, 0] for name, t in named_leaves(received)}
        features = local.features(received, linear_head(model, self.head))
        at = remembered(local.counts, features.shape[1], self.capacity)
        features, labels = features.take_along_dim(at[..., None], 1), local.labels.take_along_dim(at, 1)
        free = self.capacity - features.shape[1]
        memory: Tree = {KEYS: F.pad(features, (0, 0, 0, free)), LABELS: F.pad(labels, (0, free), value=EMPTY)}
        prior = local.samples.log_prior
        memory[PRIOR] = own[PRIOR] if prior is None else F.pad(prior, (0, tensor(own, PRIOR).shape[1] - prior.shape[1]))
        reply = Reply(subtract(trained, received), losses, local.counts)
        return Outcome(reply, tree_map(lambda new, old: new.to(old.dtype), memory, own), adapted=self.serve(trained, memory))

    def serve(self, received: Tree, own: Tree) -> Tree:
        clients = len(leaves(own)[0])
        model = expanded(received, clients)
        return model | {name: tensor(own, name)[:, None] for name in MEMORY}

    def server_models(self, server: Tree) -> Tree:
        return {}  # what clients use is made with their memories, and without one it is FedAvg's


def remembered(counts: Tensor, longest: int, capacity: int) -> Tensor:
    """The positions ``[C, most]`` of the samples that clients with so many [C] remember: all, or evenly spaced ones, since
    samples may be sorted by class. Beyond a client's own samples they go on."""
    position = torch.arange(min(longest, capacity), device=counts.device)
    return torch.where(counts[:, None] > capacity, position * counts[:, None] // capacity, position)
