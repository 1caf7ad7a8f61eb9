"""FedEM: every client's data are a mixture of K distributions; every client predicts with its own mixture of K models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fedfew.local import Local
from fedfew.methods.allowed import NumberOfModels
from fedfew.methods.base import Family, Fresh, Method, Outcome, Reply
from fedfew.stack import Tree, add, leaves, stack, subtract, tensor
from fedfew.weighted_mean import WeightedMean

MOST_STEPS, STILL = 1000, 1e-6  # of EM for a new client: how many, and what change of a weight ends it


@dataclass(frozen=True)
class FedEM(Method):
    """Federated expectation maximisation (Marfoq et al. 2021, "Federated Multi-Task Learning under a Mixture of Distributions",
    Algorithm 1). In a round a client computes, for every training sample, the probability q_k ∝ π_k·exp(−loss of model k) that it
    belongs to component k (E-step), sets its weights π_k to the mean of q_k, and trains each model k on all its samples, weighted
    by q_k (M-step). The server averages each model by number of samples. The π never leave the client.
    """

    models: NumberOfModels = 3
    """K, the number of components. 1: FedAvg. Default 3."""
    full_step: bool = True
    """Weigh samples by K·q_k instead of q_k (ours): where all q_k are 1/K, the models move as far as FedAvg's does. Off (the
    paper): they move 1/K as far."""

    name: ClassVar[str] = "fedem"
    family: ClassVar[Family] = "few models"
    summary: ClassVar[str] = "K models; each client predicts with a mixture of them whose weights it learns by EM"
    when: ClassVar[str] = "clients mix a few kinds of data, and predicting may cost K models"
    served: ClassVar[str] = "the mixture of the K server models by the client's learned weights π"
    adapted: ClassVar[str] = "the mixture, by the client's new weights π, of its K locally trained copies"

    @classmethod
    def as_published(cls, **changes: Any) -> Self:
        """The paper's and its code's weights q_k."""
        return replace(cls(full_step=False), **changes)

    def without_effect(self, clients: int, layers: int, optimizer: str) -> list[str]:
        return self.unused("models is 1", "full_step") if self.models == 1 else []

    @property
    def replicas(self) -> int:
        return self.models

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        server = stack([fresh(k) for k in range(self.models)])
        like = next(t for t in leaves(server) if t.is_floating_point())
        return server, {"pi": torch.full((clients, self.models), 1 / self.models, dtype=like.dtype, device=like.device)}

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        losses = local.sample_losses(received)
        q = (tensor(own, "pi").log()[..., None] - losses).softmax(1)
        pi = local.sample_mean(q)
        trained, _ = local.train(received, weights=q * self.models if self.full_step else q)
        reply = Reply(subtract(trained, received), local.sample_mean(losses).float(), local.counts)
        return Outcome(reply, {"pi": pi}, adapted=trained, mixture=pi)

    def aggregate(self, server: Tree, mean: WeightedMean) -> Tree:
        return add(server, mean.mean())

    def serve(self, received: Tree, own: Tree) -> Tree:
        return received

    def mixture(self, own: Tree) -> Tensor:
        return tensor(own, "pi")

    @staticmethod
    def learned_mixture(losses: Tensor) -> Tensor | None:
        """E- and M-steps with the models as they are, as for the paper's unseen clients, until the weights stay."""
        losses = losses.double().masked_fill(losses.isnan(), torch.inf)
        seen = losses[:, losses.isfinite().any(0)]  # samples that no model explains say nothing
        if not seen.shape[1]:
            return None
        pi = torch.full((len(losses),), 1 / len(losses), dtype=torch.float64)
        for _ in range(MOST_STEPS):
            before, pi = pi, (pi.log()[:, None] - seen).softmax(0).mean(1)
            if float((pi - before).abs().max()) < STILL:
                break
        return pi.float()
