"""Ditto: a global model, and for every client a personal one held near it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from torch import Tensor

from fedfew.axes import add_model_axis, copies, drop_model_axis
from fedfew.local import Local, Loss
from fedfew.methods.allowed import AtLeastOne, NotNegative
from fedfew.methods.base import Family, Fresh, Outcome, Reply
from fedfew.methods.fedavg import FedAvg
from fedfew.stack import Tree, squared_distance, subtract


@dataclass(frozen=True)
class Ditto(FedAvg):
    """The global model w is trained as in FedAvg; beside it every client trains a model of its own on
    F_i(v) + λ/2·‖v − w^t‖², w^t as received (Li et al. 2021, "Ditto: Fair and Robust Federated Learning Through
    Personalization", Algorithm 1). Only w travels. The personal model sees the batches that local-only training would.
    """

    lam: NotNegative = 0.2
    """λ, the pull of the personal model to the global one. 0: local-only training; large: the global model itself (keep
    lr·λ < 1, above 2 SGD diverges). Default 0.2."""
    personal_epochs: AtLeastOne | None = None
    """Local epochs of the personal model. None: as many as the run's local_epochs."""

    name: ClassVar[str] = "ditto"
    family: ClassVar[Family] = "one model per client"
    summary: ClassVar[str] = "a personal model regularised towards the global one"
    when: ClassVar[str] = "a good global model exists and each client differs from it a little"
    served: ClassVar[str] = "the client's personal model"
    adapted: ClassVar[str] = "the client's personal model (it is kept from round to round, so the two scores are the same)"

    @classmethod
    def as_published(cls, **changes: Any) -> Self:
        """The published code's defaults: λ = 0, which makes the personal model local-only, and one personal epoch."""
        return replace(cls(lam=0.0, personal_epochs=1), **changes)

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        server, _ = super().init(fresh, clients)
        return server, copies(fresh(0), clients)

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        w, losses = local.train(received)
        v, _ = local.train(add_model_axis(own), self.objective, context=received, epochs=self.personal_epochs)
        reply = Reply(subtract(w, received), losses, local.counts)
        return Outcome(reply, drop_model_axis(v), adapted=v)

    def objective(self, loss: Loss, params: Tree, context: Tree) -> tuple[Tensor, Tensor]:
        """h_i(v; w^t) = F_i(v) + λ/2·‖v − w^t‖²."""
        value = loss(params)
        return value + self.lam / 2 * squared_distance(params, context), value

    def serve(self, received: Tree, own: Tree) -> Tree:
        return add_model_axis(own)
