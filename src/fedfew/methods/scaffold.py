"""SCAFFOLD: FedAvg whose clients correct their gradients by control variates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fedfew.axes import add_model_axis, drop_model_axis
from fedfew.local import Local, Loss
from fedfew.methods.allowed import Positive
from fedfew.methods.base import Outcome, Reply
from fedfew.methods.variates import WithVariates
from fedfew.stack import Tree, add, branch, dot, subtract, tree_map
from fedfew.weighted_mean import WeightedMean


@dataclass(frozen=True)
class Scaffold(WithVariates):
    """One model for all, without client drift (Karimireddy et al. 2020, "SCAFFOLD: Stochastic Controlled Averaging for Federated
    Learning", Algorithm 1). A client's local step follows g_i(y) − c_i + c, where c_i estimates the client's own gradient and c
    the mean of all clients' gradients. The server averages the changes of models and variates.

    Means over clients are weighted by number of samples, as in FedAvg; for clients of one size they are the paper's.
    """

    variate: Literal["steps", "gradient"] = "steps"
    """The client's new c_i: "steps", c_i − c + (received − trained)/(steps·lr), the paper's option II, which costs nothing; or
    "gradient", the gradient on all its data at the received model, option I, which costs a pass."""
    server_step: Positive = 1.0
    """η_g, the server's step. Default 1."""

    name: ClassVar[str] = "scaffold"
    summary: ClassVar[str] = "FedAvg whose local gradients are corrected by control variates"
    when: ClassVar[str] = "one model, many local steps, clients that differ and take part often"
    adapted: ClassVar[str] = "the global model after the client's local epochs with corrected gradients"

    def dispatch(self, server: Tree, clients: Tensor) -> Tree:
        return tree_map(lambda t: t[None], {name: server[name] for name in ("model", "variate")})

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        model, c, c_i = branch(received, "model"), branch(received, "variate"), add_model_axis(own)
        trained, losses = local.train(model, corrected, context=subtract(c, c_i))
        moved = subtract(trained, model)
        if self.variate == "steps":
            new = add(subtract(c_i, c), local.split(moved)[0], -1 / (local.lr * local.steps))
        else:
            new = local.split(local.gradient(model)[0])[0]
        reply = Reply({"model": moved, "variate": subtract(new, c_i)}, losses, local.counts)
        return Outcome(reply, drop_model_axis(new), adapted=trained)

    def aggregate(self, server: Tree, mean: WeightedMean) -> Tree:
        """x ← x + η_g·mean(Δy), c ← c + |S|/N·mean(Δc)."""
        moved = mean.mean()
        model = add(branch(server, "model"), branch(moved, "model"), self.server_step)
        c = add(branch(server, "variate"), branch(moved, "variate"), self.present(server, mean))
        return server | {"model": model, "variate": c}


def corrected(loss: Loss, params: Tree, context: Tree) -> tuple[Tensor, Tensor]:
    """A function whose gradient is that of the loss plus c − c_i."""
    value = loss(params)
    return value + dot(context, params), value
