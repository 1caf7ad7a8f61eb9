"""MoFedSAM: FedSAM whose clients continue in the direction of the last round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfew.local import Local, Loss
from fedfew.methods.allowed import Share
from fedfew.methods.base import Fresh, Outcome, Reply
from fedfew.methods.fedsam import FedSAM
from fedfew.stack import Tree, add, branch, dot, named_leaves, scaled, subtract, tensor, tree_map
from fedfew.weighted_mean import WeightedMean


@dataclass(frozen=True)
class MoFedSAM(FedSAM):
    """FedSAM with momentum (Qu et al. 2022, "Generalized Federated Learning via Sharpness Aware Minimization", MoFedSAM). A local
    step follows β·∇f(w + ρ·g/‖g‖) + (1 − β)·Δ. Δ is the mean step of all clients in the round before: their mean update, divided
    by −lr and their mean number of local steps. It is 0 in the first round.
    """

    beta: Share = 0.9
    """β, how much of a step is the client's own gradient. 1: FedSAM. With server momentum 0.9 keep it at 0.9 or above: the model
    oscillates with less (docs/methods/mofedsam.md). Default 0.9."""

    name: ClassVar[str] = "mofedsam"
    summary: ClassVar[str] = "FedSAM whose local steps continue in the direction of the last round"
    when: ClassVar[str] = "as fedsam, where clients differ or few take part, so that single rounds point in different directions"
    adapted: ClassVar[str] = "the global model after the client's local epochs of sharpness-aware steps with momentum"
    notes: ClassVar[frozenset[str]] = frozenset({"direction"})

    def stable_up_to(self, momentum: float, step: float = 1.0) -> float:
        """For server momentum m and a server's step: the least lr·steps·curvature at which a quadratic runs away
        (docs/methods/mofedsam.md)."""
        past = momentum * (1 - self.beta)
        return (1 - past) * (1 - momentum) / (past * step) if past else math.inf

    @staticmethod
    def least_beta(momentum: float, step: float = 1.0) -> float:
        """The β for which :meth:`stable_up_to` is 1."""
        return 1 - (1 - momentum) / (momentum * (1 - momentum + step)) if momentum else 0.0

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        model, own = super().init(fresh, clients)
        direction: Tree = {name: torch.zeros_like(t) for name, t in named_leaves(model) if name not in fresh.buffers}
        return {"model": model, "direction": direction}, own

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        model = branch(received, "model")
        parameters, buffers = local.split(model)
        trained, losses = local.train(
            {"parameters": parameters, "buffers": buffers}, self.objective, branch(received, "direction")
        )
        moved = subtract(branch(trained, "parameters"), parameters)
        update: Tree = {"parameters": moved, "buffers": subtract(branch(trained, "buffers"), buffers)}
        update["way"] = (local.lr * local.steps)[:, None]  # how far a constant gradient of length 1 would have led
        after = branch(trained, "parameters") | branch(trained, "buffers")
        return Outcome(Reply(update, losses, local.counts), own, adapted={name: after[name] for name in model})

    def objective(self, loss: Loss, params: Tree, context: Tree) -> tuple[Tensor, Tensor]:
        sharp, value = super().objective(loss, params, {})
        return self.beta * sharp + (1 - self.beta) * dot(context, branch(params, "parameters")), value

    def aggregate(self, server: Tree, mean: WeightedMean) -> Tree:
        found = mean.mean()
        direction = scaled(branch(found, "parameters"), -1 / tensor(found, "way"))
        model = add(branch(server, "model"), branch(found, "parameters") | branch(found, "buffers"))
        return {"model": model, "direction": tree_map(lambda old, new: new.to(old), branch(server, "direction"), direction)}

    def serve(self, received: Tree, own: Tree) -> Tree:
        return branch(received, "model")

    def server_models(self, server: Tree) -> Tree:
        return branch(server, "model")
