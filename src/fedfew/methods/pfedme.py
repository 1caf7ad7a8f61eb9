"""pFedMe: personal models are proximal points of the global one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfew.axes import add_model_axis, copies, drop_model_axis
from fedfew.local import Local, Loss, gradient_of
from fedfew.methods.allowed import AtLeastOne, NotNegative, Positive
from fedfew.methods.base import Family, Fresh, Outcome, Reply
from fedfew.methods.fedavg import FedAvg
from fedfew.stack import Tree, add, branch, dot, scaled, subtract, tensor, tree_map
from fedfew.weighted_mean import WeightedMean


@dataclass(frozen=True)
class PFedMe(FedAvg):
    """Moreau envelopes (T. Dinh et al. 2020, "Personalized Federated Learning with Moreau Envelopes", Algorithm 1). On every
    batch a client brings its personal model θ nearer to the minimum of f(θ) + λ/2·‖θ − w‖² by some gradient steps, and then moves
    its copy of the global model, w ← w − min(η·λ, 1)·(w − θ). The server moves by β times the mean of the clients' moves of w.

    In every round θ starts at the model as received, as in the authors' code (the paper asks for the minimum, whatever the
    start). The gradient steps on a batch are plain SGD with the run's lr; they reach the run's optimiser as one step, so with
    momentum or Adam they are not plain.
    """

    lam: NotNegative = 1.0
    """λ, the pull of θ to w (keep lr·λ < 1, above 2 SGD diverges). 0: w never moves. Default 1."""
    inner_steps: AtLeastOne = 3
    """Gradient steps of θ on every batch, the paper's K. Default 3."""
    outer_step: Positive = 10.0
    """η in units of lr. From lr·outer_step·λ = 1 on, w goes all the way to θ, and no farther. Default 10."""
    beta: Positive = 1.0
    """β, the server's step. Default 1."""

    name: ClassVar[str] = "pfedme"
    family: ClassVar[Family] = "one model per client"
    summary: ClassVar[str] = "personal models near the global one, which moves towards them"
    when: ClassVar[str] = "as ditto, where the global model should follow the personal ones; costs several passes per step"
    served: ClassVar[str] = "the client's personal model θ"
    adapted: ClassVar[str] = "the client's personal model θ (it is kept from round to round, so the two scores are the same)"

    def without_effect(self, clients: int, layers: int, optimizer: str) -> list[str]:
        return self.unused("lam is 0", "outer_step", "beta") if self.lam == 0 else []

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        server, _ = super().init(fresh, clients)
        return server, copies(fresh(0), clients)

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        w, buffers = local.split(received)
        like = next(iter(w.values()))
        assert isinstance(like, Tensor)
        lr: Tree = {"lr": torch.full((len(local), 1), local.lr, dtype=like.dtype, device=like.device)}
        trained, losses = local.train({"w": w, "theta": w, "buffers": buffers}, self.objective, lr)
        kept, global_ = (branch(trained, name) | branch(trained, "buffers") for name in ("theta", "w"))
        personal: Tree = {name: kept[name] for name in received}
        reply = Reply(subtract({name: global_[name] for name in received}, received), losses, local.counts)
        return Outcome(reply, drop_model_axis(personal), adapted=personal)

    def objective(self, loss: Loss, params: Tree, context: Tree) -> tuple[Tensor, Tensor]:
        """A linear function whose gradient is the sum of θ's steps in θ, and min(η·λ, 1)/lr·(w − θ) in w; reported is f(θ) at
        first."""
        w, theta, buffers, lr = branch(params, "w"), branch(params, "theta"), branch(params, "buffers"), tensor(context, "lr")
        fixed, at = tree_map(torch.detach, w), tree_map(torch.detach, theta)
        values = []
        for _ in range(self.inner_steps):
            gradient, value = gradient_of(loss, at, buffers)
            at = add(at, add(gradient, subtract(at, fixed), self.lam), -lr)
            values.append(value)
        steps = scaled(subtract(tree_map(torch.detach, theta), at), 1 / lr)
        pull = scaled(subtract(fixed, at), (1 / lr).clamp_max(self.outer_step * self.lam))
        return dot(steps, theta) + dot(pull, w), values[0]

    def aggregate(self, server: Tree, mean: WeightedMean) -> Tree:
        """w ← (1 − β)·w + β·mean(w_i)."""
        return add(server, mean.mean(), self.beta)

    def serve(self, received: Tree, own: Tree) -> Tree:
        return add_model_axis(own)
