"""FedSAM: FedAvg whose clients look for flat minima."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfew.local import Local, Loss, gradient_of
from fedfew.methods.allowed import NotNegative
from fedfew.methods.base import Outcome, Reply
from fedfew.methods.fedavg import FedAvg
from fedfew.stack import Tree, add, branch, dot, subtract


@dataclass(frozen=True)
class FedSAM(FedAvg):
    """Sharpness-aware local steps (Qu et al. 2022, "Generalized Federated Learning via Sharpness Aware Minimization", Algorithm
    1): a client moves by the gradient at w + ρ·g/‖g‖ instead of that at w, where g is the gradient at w on the same batch. The
    server averages by number of samples, as FedAvg does.
    """

    rho: NotNegative = 0.05
    """ρ, how far a client looks uphill. 0: FedAvg. Default 0.05."""

    name: ClassVar[str] = "fedsam"
    summary: ClassVar[str] = "FedAvg whose local steps follow the gradient a little uphill, towards flat minima"
    when: ClassVar[str] = "one model that overfits the clients' data; local training may cost twice as much"
    adapted: ClassVar[str] = "the global model after the client's local epochs of sharpness-aware steps"

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        parameters, buffers = local.split(received)
        trained, losses = local.train({"parameters": parameters, "buffers": buffers}, self.objective)
        model = branch(trained, "parameters") | branch(trained, "buffers")
        model = {name: model[name] for name in received}
        return Outcome(Reply(subtract(model, received), losses, local.counts), own, adapted=model)

    def objective(self, loss: Loss, params: Tree, context: Tree) -> tuple[Tensor, Tensor]:
        """A linear function whose gradient is ∇f(w + ρ·g/‖g‖)."""
        w, buffers = branch(params, "parameters"), branch(params, "buffers")
        g, value = gradient_of(loss, w, buffers)
        length = dot(g, g).sqrt().clamp_min(torch.finfo(value.dtype).tiny)
        uphill, _ = gradient_of(loss, add(w, g, self.rho / length), buffers)
        return dot(uphill, w), value
