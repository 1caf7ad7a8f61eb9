"""FedAMP: clients with similar models pull each other closer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from fedfew.axes import add_model_axis, copies, drop_model_axis
from fedfew.local import Local, Loss
from fedfew.methods.allowed import NotNegative, Positive
from fedfew.methods.base import Family, Fresh, Method, Outcome, Reply
from fedfew.stack import Tree, leaves, put, squared_distance, tree_map


@dataclass(frozen=True)
class FedAMP(Method):
    """Attentive message passing (Huang et al. 2021, "Personalized Cross-Silo Federated Learning on Non-IID Data", Algorithm 1) on
    Σ_i F_i(w_i) + λ·Σ_{i<j} A(‖w_i − w_j‖²) with A(x) = 1 − exp(−x/σ).

    The server keeps every client's model and takes a gradient step on the second sum, which gives client i a cloud model of its
    own, u_i = Σ_j ξ_ij·w_j with ξ_ij = α_k·A'(‖w_i − w_j‖²) and ξ_ii = 1 − Σ_{j≠i} ξ_ij. The client minimises
    F_i(w) + λ/(2α_k)·‖w − u_i‖². The paper asks for the minimiser, whatever the start; a round of local training is a few steps
    towards it, and starts at u_i, the centre of the penalty. Only parameters travel and are compared; buffers (BatchNorm's
    statistics) stay with the client's own model.

    A step α_k that would make ξ_ii negative is shortened for that client until ξ_ii = 0, so u_i is always a mean of models.
    """

    lam: NotNegative = 0.01
    """λ; the penalty counts λ/α_k. 0: no penalty; with start="own" that is local-only training (keep lr·λ/α_k < 1, above 2 SGD
    diverges). Default 0.01."""
    alpha: Positive = 1.0
    """α_k, the server's step: how much others weigh in a client's cloud model. → 0: the client's own model. Default 1."""
    sigma: Positive = 0.125
    """σ, how far attention reaches. → 0: to no other client; → ∞: to all equally. Default 0.125."""
    unit: Literal["mean", "one"] = "mean"
    """What squared distances, and with them σ, α_k and λ, are measured in: "mean", their mean over all pairs of clients (ours:
    one σ then fits models of any size), or "one", as they are (the paper)."""
    start: Literal["cloud", "own"] = "cloud"
    """Where a client's training starts: from its cloud model u_i, or from its own model, which the penalty then pulls to u_i."""

    name: ClassVar[str] = "fedamp"
    family: ClassVar[Family] = "one model per client"
    summary: ClassVar[str] = "clients with similar models attract each other"
    when: ClassVar[str] = "groups of unknown number, clients with enough data for own models; the server keeps one per client"
    served: ClassVar[str] = "the client's own model"
    adapted: ClassVar[str] = "the client's own model (it is kept from round to round, so the two scores are the same)"

    @classmethod
    def as_published(cls, **changes: Any) -> Self:
        """The published code's behaviour: α_k = σ = 1, and a penalty without gradient, which is local-only training."""
        return replace(cls(lam=0.0, alpha=1.0, sigma=1.0, unit="one", start="own"), **changes)

    def without_effect(self, clients: int, layers: int, optimizer: str) -> list[str]:
        return self.unused("lam is 0 and start is own", "alpha", "sigma", "unit") if self.lam == 0 and self.start == "own" else []

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        own = copies(fresh(0), clients)
        sent: Tree = {name: t for name, t in own.items() if name not in fresh.buffers}
        return tree_map(torch.clone, sent), own

    def dispatch(self, server: Tree, clients: Tensor) -> Tree:
        """u_i = Σ_j ξ_ij·w_j."""
        xi = self.attention(server, clients)

        def cloud(w: Tensor) -> Tensor:
            return (xi @ w.reshape(len(w), -1).to(xi.dtype)).to(w.dtype).reshape(len(clients), 1, *w.shape[1:])

        return tree_map(cloud, server)

    def attention(self, server: Tree, clients: Tensor) -> Tensor:
        """ξ [C, M], rows summing to 1."""
        distance, unit = self.squared_distances(server, clients)
        xi = self.alpha / self.sigma * torch.exp(-distance / (self.sigma * unit))
        rows = torch.arange(len(clients), device=xi.device)
        itself = rows, clients.to(xi.device)
        xi[itself] = 0.0
        xi = xi / xi.sum(1, keepdim=True).clamp_min(1.0)
        xi[itself] = 1.0 - xi.sum(1)
        return xi

    def squared_distances(self, server: Tree, clients: Tensor) -> tuple[Tensor, Tensor | float]:
        """‖w_i − w_j‖² [C, M], and what it is measured in."""
        w = [t.reshape(len(t), -1) for t in leaves(server) if t.is_floating_point()]
        at = clients.to(w[0].device)
        parts = [torch.cdist(t[at], t, compute_mode="donot_use_mm_for_euclid_dist").square() for t in w]
        distance = torch.stack(parts).sum(0)
        if self.unit == "one":
            return distance, 1.0
        spread = torch.stack([(t - t.mean(0)).square().sum() for t in w]).sum()  # Σ over pairs of ‖w_i − w_j‖² is M times this
        return distance, (2 * spread / max(1, len(w[0]) - 1)).clamp_min(torch.finfo(spread.dtype).tiny)

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        start = add_model_axis(own)
        start = start | received if self.start == "cloud" else start
        trained, losses = local.train(start, self.objective, context=received)
        sent: Tree = {name: trained[name] for name in received}
        return Outcome(Reply(sent, losses, local.counts), drop_model_axis(trained), adapted=trained)

    def objective(self, loss: Loss, params: Tree, context: Tree) -> tuple[Tensor, Tensor]:
        """F_i(w) + λ/(2α_k)·‖w − u_i‖²."""
        value = loss(params)
        return value + self.lam / (2 * self.alpha) * squared_distance(context, params), value

    def absorb(self, server: Tree, clients: Tensor, reply: Reply) -> Tree:
        server = tree_map(torch.clone, server)
        put(server, clients, drop_model_axis(reply.update))
        return server

    def serve(self, received: Tree, own: Tree) -> Tree:
        return add_model_axis(own)

    def server_models(self, server: Tree) -> Tree:
        return {}  # what the server keeps are the clients' own models
