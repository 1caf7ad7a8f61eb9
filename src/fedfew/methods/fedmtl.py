"""FedMTL: multi-task learning, every client a task, all held near their mean."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fedfew.axes import add_model_axis, copies, drop_model_axis
from fedfew.local import Local, Loss
from fedfew.methods.allowed import NotNegative
from fedfew.methods.base import Family, Fresh, Method, Outcome, Reply
from fedfew.stack import Tree, add, branch, squared_distance, stack, subtract, tensor
from fedfew.weighted_mean import WeightedMean


@dataclass(frozen=True)
class FedMTL(Method):
    """Every client has a model of its own; together they minimise Σ_i F_i(w_i) + λ/2·tr(W Ω Wᵀ) (Smith et al. 2017, "Federated
    Multi-Task Learning", Eq. 1 and Algorithm 1).

    Ω is the fixed matrix of mean-regularised multi-task learning, (I − 11ᵀ/M)² = I − 11ᵀ/M, so the regulariser is
    λ/2·Σ_i ‖w_i − w̄‖² and its gradient at client i is λ·(w_i − w̄). The server keeps w̄, the mean over all M clients, absent
    ones included; in a round clients see the mean of the round before. Ω is not learned, and models are trained by SGD in place
    of MOCHA's dual solver, which is for convex losses. The paper's second term, ‖W‖², is the run's weight_decay.
    """

    lam: NotNegative = 0.1
    """λ, the pull to the mean of all clients' models. 0: local-only training; large: one model for all (keep lr·λ < 1, above 2
    SGD diverges). Default 0.1."""

    name: ClassVar[str] = "fedmtl"
    family: ClassVar[Family] = "one model per client"
    summary: ClassVar[str] = "one model per client, all regularised towards their mean"
    when: ClassVar[str] = "few samples per client and related tasks, no groups"
    served: ClassVar[str] = "the client's own model"
    adapted: ClassVar[str] = "the client's own model (it is kept from round to round, so the two scores are the same)"

    @classmethod
    def as_published(cls, **changes: Any) -> Self:
        """The published code's behaviour: its penalty has no gradient, which is local-only training."""
        return replace(cls(lam=0.0), **changes)

    @property
    def not_optimised(self) -> str:
        return "keeps the mean of its clients' models on the server"  # moved any further, it would pull them with it

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        server: Tree = {"mean": stack([fresh(0)]), "clients": torch.tensor(float(clients))}
        return server, copies(fresh(0), clients)

    def dispatch(self, server: Tree, clients: Tensor) -> Tree:
        return super().dispatch(self.server_models(server), clients)

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        w = add_model_axis(own)
        trained, losses = local.train(w, self.objective, context=received)
        reply = Reply(subtract(trained, w), losses, local.counts)
        return Outcome(reply, drop_model_axis(trained), adapted=trained)

    def objective(self, loss: Loss, params: Tree, context: Tree) -> tuple[Tensor, Tensor]:
        """F_i(w_i) + λ/2·‖w_i − w̄‖²."""
        value = loss(params)
        return value + self.lam / 2 * squared_distance(params, context), value

    def log_weights(self, reply: Reply, share: Tensor, clients: Tensor) -> Tensor:
        return torch.zeros(reply.losses.shape)  # tasks count alike

    def aggregate(self, server: Tree, mean: WeightedMean) -> Tree:
        """w̄ + Σ_i Δ_i / M: those who were absent have not moved."""
        moved = mean.log_total.exp() / tensor(server, "clients").cpu()  # the share of clients that did
        return server | {"mean": add(self.server_models(server), mean.mean(), moved)}

    def serve(self, received: Tree, own: Tree) -> Tree:
        return add_model_axis(own)

    def server_models(self, server: Tree) -> Tree:
        """The mean w̄: where a new client would start."""
        return branch(server, "mean")
