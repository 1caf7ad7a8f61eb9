"""FedSoft: every client trains one model near the K centres, as near to each as many of its samples fit it best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedfew.axes import add_model_axis, copies, drop_model_axis
from fedfew.local import Local, Loss
from fedfew.methods.allowed import NotNegative, NumberOfModels, Share
from fedfew.methods.base import Family, Fresh, Method, Outcome, Reply
from fedfew.stack import Tree, add, branch, leaves, scaled, squared_distance, stack, tensor, tree_map
from fedfew.weighted_mean import WeightedMean


@dataclass(frozen=True)
class FedSoft(Method):
    """Soft clusters (Ruan and Joe-Wong 2022, "FedSoft: Soft Clustered Federated Learning with Proximal Local Updating", Algorithm
    1). A client counts for how many of its samples centre s is the best of the K, u_s of them, but no fewer than σ. It trains a
    single model, its own, on F_i(w) + λ/2·Σ_s u_s·‖w − c_s‖² and sends it with its u. Centre s becomes the mean of the clients'
    models, weighted by n_i·u_is; the paper draws clients with these probabilities instead.

    The u are estimated in every round that a client takes part in (the paper's τ = 1).
    """

    models: NumberOfModels = 3
    """K, the number of centres. Default 3."""
    lam: NotNegative = 0.1
    """λ, the pull to the centres. 0: local-only training (keep lr·λ < 1, above 2 SGD diverges). Default 0.1."""
    sigma: Share = 0.01
    """σ, the least part of a client that counts for every centre. Default 0.01."""

    name: ClassVar[str] = "fedsoft"
    family: ClassVar[Family] = "few models"
    summary: ClassVar[str] = "K centres; each client trains one model of its own near those that fit its samples"
    when: ClassVar[str] = "clients mix a few kinds of data, have enough for a model of their own, and train and send only one"
    served: ClassVar[str] = "the client's own model, held near the K centres"
    adapted: ClassVar[str] = "the client's own model (it is kept from round to round, so the two scores are the same)"

    @property
    def not_optimised(self) -> str:
        return "makes its centres anew from its clients' models"

    def without_effect(self, clients: int, layers: int, optimizer: str) -> list[str]:
        return self.unused("models is 1", "sigma") if self.models == 1 else []

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        models = stack([fresh(k) for k in range(self.models)])
        total = torch.zeros(self.models, dtype=torch.float64, device=leaves(models)[0].device)
        zero = tree_map(lambda t: torch.zeros_like(t, dtype=torch.float64), models)
        own = copies(fresh(0), clients)
        return {"models": models, "sum": zero, "total": total}, own

    def dispatch(self, server: Tree, clients: Tensor) -> Tree:
        return tree_map(lambda t: t[None], branch(server, "models"))

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        losses = local.sample_losses(received)
        best = one_hot(losses.argmin(1), self.models).transpose(1, 2).to(losses.dtype)  # [C, K, longest]
        u = local.sample_mean(best).clamp_min(self.sigma)
        whole = u.sum(1)
        share = u / whole[:, None]
        centre = tree_map(lambda t: torch.einsum("ck,ck...->c...", share.to(t), t.expand(len(u), *t.shape[1:]))[:, None],
                          local.split(received)[0])  # fmt: skip
        start = add_model_axis(own)
        trained, _ = local.train(start, self.objective, {"centre": centre, "pull": self.lam * whole[:, None]})
        reply = Reply({"model": trained, "u": u}, local.sample_mean(losses).float(), local.counts)
        return Outcome(reply, drop_model_axis(trained), adapted=trained)

    def objective(self, loss: Loss, params: Tree, context: Tree) -> tuple[Tensor, Tensor]:
        """F(w) + λ·Σ_s u_s/2·‖w − c̄‖², c̄ = Σ_s u_s·c_s / Σ_s u_s: the paper's penalty but for a constant."""
        value = loss(params)
        return value + tensor(context, "pull") / 2 * squared_distance(branch(context, "centre"), params), value

    @property
    def averages(self) -> bool:
        return False  # centres are made of sums over clients, see absorb

    def absorb(self, server: Tree, clients: Tensor, reply: Reply) -> Tree:
        """Add n_i·u_is·w_i to the sums of this round."""
        weights = tensor(reply.update, "u").double() * reply.samples[:, None]
        part = tree_map(lambda t: torch.einsum("ck,c...->k...", weights, t[:, 0].double()), branch(reply.update, "model"))
        return server | {"sum": add(branch(server, "sum"), part), "total": tensor(server, "total") + weights.sum(0)}

    def aggregate(self, server: Tree, mean: WeightedMean) -> Tree:
        """c_s ← Σ_i n_i·u_is·w_i / Σ_i n_i·u_is."""
        centres, total = scaled(branch(server, "sum"), 1 / tensor(server, "total")), tensor(server, "total")
        models = tree_map(lambda old, new: (new if old.is_floating_point() else new.round()).to(old.dtype),
                          branch(server, "models"), centres)  # fmt: skip
        return {"models": models, "sum": scaled(branch(server, "sum"), 0.0), "total": torch.zeros_like(total)}

    def serve(self, received: Tree, own: Tree) -> Tree:
        return add_model_axis(own)

    def server_models(self, server: Tree) -> Tree:
        return branch(server, "models")
