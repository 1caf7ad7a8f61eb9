"""APFL: every client mixes the global model with one of its own, and learns in which proportion."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from fedfew.axes import add_model_axis, copies, drop_model_axis
from fedfew.local import Local, Loss, gradient_of
from fedfew.methods.allowed import ZeroToOne
from fedfew.methods.base import Family, Fresh, Outcome, Reply
from fedfew.methods.fedavg import FedAvg
from fedfew.stack import Tree, add, branch, dot, leaves, subtract, tensor, tree_map

PUBLISHED_DECAY = 0.02  # of α, in the published code only


@dataclass(frozen=True)
class APFL(FedAvg):
    """A client predicts with v̄ = α·v + (1 − α)·w (Deng et al. 2020, "Adaptive Personalized Federated Learning", Algorithm 1).

    Every local step moves three things at once, all on the same batch: w by ∇f(w), as in FedAvg; v by the gradient of f(v̄) with
    respect to v, w being fixed there; and α by the gradient of f(v̄) with respect to α, projected to [0, 1]. Only w travels.
    """

    alpha: ZeroToOne = 0.5
    """α at the start. 0: FedAvg; 1, not adaptive: local-only training. Default 0.5."""
    adaptive: bool = True
    """Learn α by its gradient, each client its own. Off: α stays where it starts."""
    mixing: Literal["step", "round"] = "step"
    """When v meets w. "step" (the paper): v is trained through the mix. "round" (published code): v is trained by itself and
    becomes the mix when the round ends; α follows ⟨v′ − w′, α∇f(v) + (1 − α)∇f(w)⟩ + 0.02·α, where v′ and w′ are v and w after
    the step of plain SGD and the gradients are those before it."""

    name: ClassVar[str] = "apfl"
    family: ClassVar[Family] = "one model per client"
    summary: ClassVar[str] = "a learned mixture of a global and a personal model"
    when: ClassVar[str] = "it is not known how much a client should trust the others"
    served: ClassVar[str] = "α·v + (1 − α)·w: the client's own v mixed with the global model w as received"
    adapted: ClassVar[str] = "α·v + (1 − α)·w after the client's local epochs, w being its locally trained copy"

    @classmethod
    def as_published(cls, **changes: Any) -> Self:
        """The published code's form: α starts at 1, v becomes the mix once per round."""
        return replace(cls(alpha=1.0, mixing="round"), **changes)

    def without_effect(self, clients: int, layers: int, optimizer: str) -> list[str]:
        return self.unused("alpha is 1 and adaptive is off", "mixing") if self.alpha == 1 and not self.adaptive else []

    @property
    def replicas(self) -> int:
        return 2

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        server, _ = super().init(fresh, clients)
        v = copies(fresh(0), clients)
        like = next(t for t in leaves(v) if t.is_floating_point())
        return server, {"v": v, "alpha": torch.full((clients,), float(self.alpha), dtype=like.dtype, device=like.device)}

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        v, alpha = _v_and_alpha(add_model_axis(own))
        buffers = {name: t for name, t in v.items() if not local.engine.trainable(name)}
        params: Tree = {"w": received, "v": {name: t for name, t in v.items() if name not in buffers}, "buffers": buffers}
        objective = self.through_mix if self.mixing == "step" else self.side_by_side
        context: Tree = {} if self.mixing == "step" else {"lr": torch.full_like(alpha, local.lr)}
        if self.adaptive:
            trained, losses = local.train(params | {"alpha": alpha}, objective, context, project=keep_in_unit_interval)
        else:
            trained, losses = local.train(params, objective, context | {"alpha": alpha})
            trained["alpha"] = alpha
        w = branch(trained, "w")
        v, alpha = _v_and_alpha(trained)
        v |= branch(trained, "buffers")
        mixed = mix(alpha, v, w)
        kept: Tree = {"v": v if self.mixing == "step" else mixed, "alpha": alpha}
        reply = Reply(subtract(w, received), losses, local.counts)
        return Outcome(reply, drop_model_axis(kept), adapted=mixed)

    def through_mix(self, loss: Loss, params: Tree, context: Tree) -> tuple[Tensor, Tensor]:
        """f(w) + f(α·v + (1 − α)·w), where the second w is fixed: one gradient moves w, v and α as Algorithm 1 does."""
        w, (v, alpha) = branch(params, "w"), _v_and_alpha(params | context)
        value = loss(w)
        mixed = mix(alpha, v, tree_map(torch.detach, w))
        return value + loss(mixed | branch(params, "buffers")), value

    def side_by_side(self, loss: Loss, params: Tree, context: Tree) -> tuple[Tensor, Tensor]:
        """A linear function with the published gradients: ∇f(w) in w, ∇f(v) in v, and in α the one that ``mixing`` describes."""
        received, (v, alpha) = branch(params, "w"), _v_and_alpha(params | context)
        w: Tree = {name: received[name] for name in v}
        of_w, value = gradient_of(loss, w, {name: t for name, t in received.items() if name not in v})
        of_v, _ = gradient_of(loss, v, branch(params, "buffers"))
        step, fixed = -tensor(context, "lr"), alpha.detach()
        apart = subtract(add(v, of_v, step), add(w, of_w, step))
        mixed = mix(fixed, of_v, of_w)
        of_alpha = (dot(apart, mixed) + PUBLISHED_DECAY * fixed).detach()
        return dot(of_w, w) + dot(of_v, v) + of_alpha * alpha, value

    def serve(self, received: Tree, own: Tree) -> Tree:
        v, alpha = _v_and_alpha(add_model_axis(own))
        return v if self.mixing == "round" else mix(alpha, v, received)


def mix(alpha: Tensor, v: Tree, w: Tree) -> Tree:
    """α·v + (1 − α)·w for all that is in v; α has the leading axes of v, or none."""

    def mixed(a: Tensor, b: Tensor) -> Tensor:
        share = alpha.reshape(alpha.shape + (1,) * (a.ndim - alpha.ndim))
        return (share * a + (1 - share) * b).to(a.dtype)  # a count of batches stays one

    return tree_map(mixed, v, {name: w[name] for name in v})


def keep_in_unit_interval(params: Tree) -> None:
    _v_and_alpha(params)[1].clamp_(0, 1)


def _v_and_alpha(tree: Tree) -> tuple[Tree, Tensor]:
    return branch(tree, "v"), tensor(tree, "alpha")
