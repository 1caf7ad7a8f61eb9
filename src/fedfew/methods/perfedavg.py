"""Per-FedAvg: one model from which every client is one gradient step away from a good model of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fedfew.axes import add_model_axis, copies, drop_model_axis
from fedfew.local import Local, Loss, gradient_of
from fedfew.methods.allowed import NotNegative, Positive
from fedfew.methods.base import Family, Fresh, Outcome, Reply
from fedfew.methods.fedavg import FedAvg
from fedfew.stack import Tree, add, branch, dot, subtract


@dataclass(frozen=True)
class PerFedAvg(FedAvg):
    """Meta-learning (Fallah et al. 2020, "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
    Meta-Learning Approach", Algorithm 1): clients minimise F_i(w − α·∇F_i(w)), the loss after one step of their own. The gradient
    (I − α·∇²F_i(w))·∇F_i(w − α·∇F_i(w)) is taken with the product ∇²F_i·v by a difference of two gradients (HF), or without its
    Hessian (FO). The server averages by number of samples, as FedAvg does.

    All gradients of a step are taken on one batch, where the paper draws one for each. A client keeps the model that is one step
    on all its data away from the model it received last, and uses that.

    With server momentum the training loss jumps (docs/methods/perfedavg.md), so the server's optimiser has no effect if α > 0.
    A likely reason: where the curvature is near 1/α local steps hardly move the model, and nothing stops the momentum.
    """

    variant: Literal["FO", "HF"] = "HF"
    """"HF", Hessian-free: four gradients per step; "FO", first-order: two, but steps go uphill where the curvature is above 1/α.
    Default HF."""
    alpha: NotNegative = 0.03
    """α, the client's own step, in training and for the model that it uses. 0: FedAvg, served as received. Default 0.03."""
    delta: Positive = 1e-3
    """δ of HF: ∇²F·v ≈ (∇F(w + δ·v) − ∇F(w − δ·v))/2δ. Default 0.001."""

    name: ClassVar[str] = "perfedavg"
    family: ClassVar[Family] = "one model per client"
    summary: ClassVar[str] = "a shared model trained to be good after one gradient step of the client's own"
    when: ClassVar[str] = "clients have little data or memory, and must personalise in one step"
    served: ClassVar[str] = "the client's personal model: one step away from the global model that it received in its last round"
    adapted: ClassVar[str] = "the client's personal model (it is kept from round to round, so the two scores are the same)"

    @property
    def not_optimised(self) -> str:
        return "has a training loss that jumps with server momentum" if self.alpha else ""

    def without_effect(self, clients: int, layers: int, optimizer: str) -> list[str]:
        if self.alpha == 0:
            return self.unused("alpha is 0", "variant", "delta")
        return self.unused("variant is FO", "delta") if self.variant == "FO" else []

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        server, _ = super().init(fresh, clients)
        return server, copies(fresh(0), clients)

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        parameters, buffers = local.split(received)
        trained, losses = local.train({"parameters": parameters, "buffers": buffers}, self.objective)
        model = branch(trained, "parameters") | branch(trained, "buffers")
        step, _ = local.split(local.gradient(received)[0])
        one_step = add(parameters, step, -self.alpha) | branch(trained, "buffers")
        personal: Tree = {name: one_step[name] for name in received}
        reply = Reply(subtract({name: model[name] for name in received}, received), losses, local.counts)
        return Outcome(reply, drop_model_axis(personal), adapted=personal)

    def objective(self, loss: Loss, params: Tree, context: Tree) -> tuple[Tensor, Tensor]:
        """A linear function whose gradient is the meta-gradient; the loss reported is F_i(w)."""
        w, buffers = branch(params, "parameters"), branch(params, "buffers")
        g, value = gradient_of(loss, w, buffers)
        meta, _ = gradient_of(loss, add(w, g, -self.alpha), buffers)
        if self.variant == "HF":
            up, down = (gradient_of(loss, add(w, meta, by), buffers)[0] for by in (self.delta, -self.delta))
            meta = add(meta, subtract(up, down), -self.alpha / (2 * self.delta))
        return dot(meta, w), value

    def serve(self, received: Tree, own: Tree) -> Tree:
        return add_model_axis(own)
