"""FedProx: FedAvg whose clients are held near the global model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from torch import Tensor

from fedfew.local import Local, Loss
from fedfew.methods.allowed import NotNegative
from fedfew.methods.base import Outcome, Reply
from fedfew.methods.fedavg import FedAvg
from fedfew.stack import Tree, squared_distance, subtract


@dataclass(frozen=True)
class FedProx(FedAvg):
    """One model for all; a client minimises F_i(w) + μ/2·‖w − w^t‖², w^t being the model it received (Li et al. 2020,
    "Federated Optimization in Heterogeneous Networks", Algorithm 2). The server averages by number of samples, as FedAvg does.
    """

    mu: NotNegative = 0.1
    """μ, the pull to the received model. 0: FedAvg; large: clients hardly move (keep lr·μ < 1, above 2 SGD diverges).
    Default 0.1."""

    name: ClassVar[str] = "fedprox"
    summary: ClassVar[str] = "FedAvg with a proximal term towards the received model"
    when: ClassVar[str] = "one model, several local epochs, clients that differ"
    adapted: ClassVar[str] = "the global model after the client's local epochs with the proximal term"

    @classmethod
    def as_published(cls, **changes: Any) -> Self:
        """The published code's default: μ = 0, which is FedAvg."""
        return replace(cls(mu=0.0), **changes)

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        trained, losses = local.train(received, self.objective, context=received)
        return Outcome(Reply(subtract(trained, received), losses, local.counts), own, adapted=trained)

    def objective(self, loss: Loss, params: Tree, context: Tree) -> tuple[Tensor, Tensor]:
        """h(w; w^t) = F(w) + μ/2·‖w − w^t‖²."""
        value = loss(params)
        return value + self.mu / 2 * squared_distance(params, context), value
