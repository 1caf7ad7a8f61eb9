"""IFCA: K models, each client trains the one that fits it best."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from fedfew import random_streams
from fedfew.local import Local, best_model
from fedfew.methods.allowed import NumberOfModels
from fedfew.methods.base import Family, Fresh, Method, Outcome, Reply
from fedfew.stack import Tree, add, stack, subtract, tree_map
from fedfew.weighted_mean import WeightedMean


@dataclass(frozen=True)
class IFCA(Method):
    """Clusters found by loss (Ghosh et al. 2020, "An Efficient Framework for Clustered Federated Learning", Algorithm 1, option
    II: model averaging). A client joins the cluster whose model has the least loss on its training data and trains that one only;
    the server averages within each cluster by number of samples. A model without clients stays as it is.
    """

    models: NumberOfModels = 3
    """K. 1: FedAvg. Default 3."""
    init_models: Literal["distinct", "copies"] = "distinct"
    """K distinct initialisations (the paper), or K copies of one (published code)."""
    ties: Literal["first", "random"] = "first"
    """Which of several models with the same least loss, but for rounding, a client joins: the first, or any of them, drawn anew
    by round and client (published code: its data are shuffled for each model, so rounding decides)."""

    name: ClassVar[str] = "ifca"
    family: ClassVar[Family] = "few models"
    summary: ClassVar[str] = "K clusters, each client trains the model that fits it best"
    when: ClassVar[str] = "clear groups, their number known"
    served: ClassVar[str] = "of the K server models, the one with the least loss on the client's training data"
    adapted: ClassVar[str] = "that model, chosen when the round began, after the client's local epochs"

    @classmethod
    def as_published(cls, **changes: Any) -> Self:
        """The published code's form: K copies of one initialisation, over which clients spread at random in the first round."""
        return replace(cls(init_models="copies", ties="random"), **changes)

    def without_effect(self, clients: int, layers: int, optimizer: str) -> list[str]:
        return self.unused("models is 1", "init_models", "ties") if self.models == 1 else []

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        return stack([fresh(k if self.init_models == "distinct" else 0) for k in range(self.models)]), {}

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        losses = local.losses(received)
        if self.ties == "random":
            losses = ties_broken(losses, random_streams.count(random_streams.TIES, local.engine.seed, local.round, local.clients))
        choice, everyone = best_model(losses), torch.arange(len(local), device=losses.device)
        chosen = tree_map(lambda t: t.expand(len(local), *t.shape[1:])[everyone, choice][:, None], received)
        trained, _ = local.train(chosen)
        return Outcome(Reply(subtract(trained, chosen), losses, local.counts), own, adapted=trained)

    def log_weights(self, reply: Reply, share: Tensor, clients: Tensor) -> Tensor:
        """log n_i for the cluster that client i joined, −∞ for the others."""
        choice = best_model(reply.losses)[:, None].cpu()
        nothing = torch.full(reply.losses.shape, -torch.inf, dtype=share.dtype)
        return nothing.scatter(1, choice, share.cpu().log()[:, None])

    def aggregate(self, server: Tree, mean: WeightedMean) -> Tree:
        return add(server, mean.mean())

    def serve(self, received: Tree, own: Tree) -> Tree:
        return received


ROUNDING = 1e-6  # of a mean loss in single precision, relative


def ties_broken(losses: Tensor, key: Tensor) -> Tensor:
    """``losses[C, K]`` in which one of those that are the least but for rounding, drawn by the client's key [C], is the least."""
    least = losses.nan_to_num(nan=torch.inf, posinf=torch.inf).amin(1, keepdim=True)
    tied = losses <= least * (1 + ROUNDING)
    lot = random_streams.uniform(key.to(losses.device)[:, None], torch.arange(losses.shape[1], device=losses.device))
    drawn = torch.where(tied, lot, -1.0).argmax(1, keepdim=True)
    below = torch.nextafter(least, torch.full_like(least, -torch.inf))
    return losses.scatter(1, drawn, torch.where(tied.sum(1, keepdim=True) > 1, below, losses.gather(1, drawn)))
