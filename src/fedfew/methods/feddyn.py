"""FedDyn: FedAvg whose clients' objectives are shifted until their minima agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedfew.axes import add_model_axis, drop_model_axis
from fedfew.local import Local, Loss
from fedfew.methods.allowed import Positive
from fedfew.methods.base import Outcome, Reply
from fedfew.methods.variates import WithVariates
from fedfew.stack import Tree, add, branch, dot, squared_distance, subtract, tree_map
from fedfew.weighted_mean import WeightedMean


@dataclass(frozen=True)
class FedDyn(WithVariates):
    """Dynamic regularisation (Acar et al. 2021, "Federated Learning Based on Dynamic Regularization", Algorithm 1). A client
    minimises F_i(θ) − ⟨g_i, θ⟩ + α/2·‖θ − θ^t‖² and then sets g_i ← g_i − α(θ_i − θ^t), which at the minimum is ∇F_i(θ_i). The
    server keeps h ← h − α·|S|/N·mean(θ_i − θ^t) and sends out mean(θ_i) − h/α.

    Means over clients are weighted by number of samples, as in FedAvg; for clients of one size they are the paper's. −h/α is the
    sum of all mean updates so far: momentum on top of it sums them up twice, and the model runs away.
    """

    alpha: Positive = 0.1
    """α, the pull to the received model and the rate at which the shifts follow. Too small: the server's step −h/α, which does
    not shrink with α, overshoots. Too large: clients hardly move (keep lr·α < 1)."""

    name: ClassVar[str] = "feddyn"
    summary: ClassVar[str] = "FedAvg with a regulariser per client that makes the clients' minima agree"
    when: ClassVar[str] = "one model, many local steps, clients that differ; instead of a server optimiser, not with one"
    adapted: ClassVar[str] = "the global model after the client's local epochs with its regulariser"

    @property
    def not_optimised(self) -> str:
        return "has a server's step of its own, which sums up all updates so far"

    def dispatch(self, server: Tree, clients: Tensor) -> Tree:
        return tree_map(lambda t: t[None], {"model": server["model"]})

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        model, g = branch(received, "model"), add_model_axis(own)
        fixed: Tree = {"g": g, "received": local.split(model)[0]}
        trained, losses = local.train(model, self.objective, context=fixed)
        moved = subtract(trained, model)
        new = add(g, local.split(moved)[0], -self.alpha)
        return Outcome(Reply({"model": moved}, losses, local.counts), drop_model_axis(new), adapted=trained)

    def objective(self, loss: Loss, params: Tree, context: Tree) -> tuple[Tensor, Tensor]:
        """F_i(θ) − ⟨g_i, θ⟩ + α/2·‖θ − θ^t‖²."""
        value = loss(params)
        pull = self.alpha / 2 * squared_distance(branch(context, "received"), params)
        return value - dot(branch(context, "g"), params) + pull, value

    def aggregate(self, server: Tree, mean: WeightedMean) -> Tree:
        """h ← h − α·|S|/N·mean(Δ), θ ← θ + mean(Δ) − h/α; BatchNorm's statistics are averaged alone."""
        moved, h = branch(mean.mean(), "model"), branch(server, "variate")
        parameters: Tree = {name: moved[name] for name in h}
        h = add(h, parameters, -self.alpha * self.present(server, mean))
        averaged = add(branch(server, "model"), moved)
        return server | {"model": averaged | add({name: averaged[name] for name in h}, h, -1 / self.alpha), "variate": h}
