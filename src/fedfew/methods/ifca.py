"""IFCA: K models, each client trains the one that fits it best."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from fedfew.local import Local, best_model
from fedfew.methods.base import Fresh, Method, Outcome, Reply, is_whole
from fedfew.stack import Tree, WeightedMean, add, stack, subtract, tree_map


@dataclass(frozen=True)
class IFCA(Method):
    """Clusters found by loss (Ghosh et al. 2020, "An Efficient Framework for Clustered Federated Learning", Algorithm 1, option
    II: model averaging). A client joins the cluster whose model has the least loss on its training data and trains that one only;
    the server averages within each cluster by number of samples. A model that nobody joined stays as it is.
    """

    models: int = 3
    """K. 1: FedAvg. Default 3."""
    init_models: Literal["distinct", "copies"] = "distinct"
    """K distinct initialisations (the paper), or K copies of one (published code: all losses tie, everybody joins the first
    cluster, and while nobody likes the untrained copies better, IFCA is FedAvg)."""

    name: ClassVar[str] = "ifca"
    served: ClassVar[str] = "of the K server models, the one with the least loss on the client's training data"
    adapted: ClassVar[str] = "that model, chosen when the round began, after the client's local epochs"

    @classmethod
    def as_published(cls, **changes: Any) -> Self:
        """The published code's form: K copies of one initialisation."""
        return replace(cls(init_models="copies"), **changes)

    def check(self) -> None:
        self.require(is_whole(self.models), "models", "a whole number ≥ 1")
        self.require(self.init_models in ("distinct", "copies"), "init_models", "'distinct' or 'copies'")

    def check_against(self, clients: int) -> None:
        self.require(self.models <= clients, "models", f"at most the number of clients ({clients})")

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        return stack([fresh(k if self.init_models == "distinct" else 0) for k in range(self.models)]), {}

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        losses = local.losses(received)
        choice, everyone = best_model(losses), torch.arange(len(local), device=losses.device)
        chosen = tree_map(lambda t: t.expand(len(local), *t.shape[1:])[everyone, choice][:, None], received)
        trained, _ = local.train(chosen)
        return Outcome(Reply(subtract(trained, chosen), losses, local.counts), own, adapted=trained)

    def log_weights(self, reply: Reply, share: Tensor, clients: Tensor) -> Tensor:
        """log n_i for the cluster that client i joined, −∞ for the others."""
        choice = best_model(reply.losses)[:, None].cpu()
        nothing = torch.full(reply.losses.shape, -torch.inf)
        return nothing.scatter(1, choice, share.cpu().log()[:, None])

    def aggregate(self, server: Tree, mean: WeightedMean) -> Tree:
        return add(server, mean.mean())

    def serve(self, received: Tree, own: Tree) -> Tree:
        return received
