"""FedFew: K models for M clients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedfew import scalarization
from fedfew.engines.base import Local
from fedfew.methods.base import Fresh, Method, Outcome, Reply
from fedfew.stack import Tree, WeightedMean, add, stack, subtract, tree_map


@dataclass(frozen=True)
class FedFew(Method):
    """K models for M clients by smooth Tchebycheff set scalarization (Guo et al. 2026, Algorithm 1).

    Every client trains all K models and reports its K losses; the server moves model k by the clients' updates, weighted by
    α_i·w[i, k]: α favours clients that no model serves well, w the model that serves the client best. Each client then uses the
    model with the least loss on its own training data.

    Defaults are the paper's where a field says nothing else. :meth:`as_published` is what the published code does.
    """

    models: int = 3
    """K. 1: a single model, clients weighted by α."""
    mu: float = 0.005
    """Smoothing μ. → 0: a client counts for its best model only, and only the worst client counts; → ∞: all alike. The paper takes
    0.01; half of it finds the groups of rotated digits more often."""
    init_models: Literal["distinct", "copies"] = "distinct"
    """K distinct initialisations (ours), or K copies of one, told apart by batch order alone (published)."""
    normalise: bool = True
    """Divide each model's weights by their sum over clients, so that it moves a whole step (ours). Off (the paper's Eq. 8), it
    moves about 1/K of one: the model that leads moves more, leads further, and the others starve."""
    weigh_samples: bool = True
    """Multiply client i's losses by n_i / Σ_j n_j before the weights are computed (the paper's footnote)."""
    loss_at: Literal["training", "received"] = "training"
    """The loss reported: running mean over the last local epoch (published; costs nothing), or a pass over the training data at
    the model as received."""
    send: Literal["update", "gradient"] = "update"
    """What is sent: trained − received (published), or the gradient at the locally trained point (Algorithm 1, line 8)."""
    server_step: float = 1.0
    """Step on the server: 1 for updates (published); for gradients the paper takes the learning rate η."""
    preference: tuple[float, ...] | None = None
    """λ, one number a client: how much its loss counts in the maximum. None: 1 for all (paper)."""
    ideal: tuple[float, ...] | None = None
    """z*, one number a client: the loss it could reach. None: 0 for all (paper)."""

    name: ClassVar[str] = "fedfew"
    served: ClassVar[str] = "of the K server models, the one with the least loss on the client's training data"
    adapted: ClassVar[str] = "of the client's K locally trained copies, the one with the least training loss"

    @classmethod
    def as_published(cls, **changes: Any) -> FedFew:
        """The published code's form: μ = 0.01, K copies of one initialisation, weights not normalised per model."""
        return replace(cls(mu=0.01, init_models="copies", normalise=False), **changes)

    def check(self) -> None:
        self.require(isinstance(self.models, int) and self.models >= 1, "models", "a whole number ≥ 1")
        self.require(0 < self.mu < float("inf"), "mu", "a finite number > 0")
        self.require(self.init_models in ("distinct", "copies"), "init_models", "'distinct' or 'copies'")
        self.require(self.loss_at in ("training", "received"), "loss_at", "'training' or 'received'")
        self.require(self.send in ("update", "gradient"), "send", "'update' or 'gradient'")
        self.require(0 < self.server_step < float("inf"), "server_step", "a finite number > 0")
        if self.preference is not None:
            self.require(min(self.preference) >= 0, "preference", "≥ 0 for every client")

    def check_against(self, clients: int) -> None:
        self.require(self.models <= clients, "models", f"at most the number of clients ({clients})")
        for setting in ("preference", "ideal"):
            values = getattr(self, setting)
            self.require(values is None or len(values) == clients, setting, f"one number for each of {clients} clients")

    @property
    def replicas(self) -> int:
        return self.models

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        return stack([fresh(k if self.init_models == "distinct" else 0) for k in range(self.models)]), {}

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        """Lines 3–11."""
        trained, losses = local.train(received)
        if self.loss_at == "received":
            losses = local.losses(received)
        if self.send == "gradient":
            gradient, _ = local.gradient(trained)
            sent = tree_map(torch.neg, gradient)
        else:
            sent = subtract(trained, received)
        return Outcome(Reply(sent, losses, local.counts), own, adapted=trained)

    def log_weights(self, reply: Reply, share: Tensor, clients: Tensor) -> Tensor:
        """log(λ_i α_i w[i, k]) but for a constant: line 13."""
        lam, ideal = self._lambda_and_ideal(share, clients)
        log_alpha, log_w = scalarization.log_weights(reply.losses.cpu().double(), self.mu, lam, ideal)
        if self.preference is not None:
            log_alpha = log_alpha + torch.tensor(self.preference).double()[clients].log()
        return log_alpha[:, None] + log_w

    def aggregate(self, server: Tree, mean: WeightedMean) -> Tree:
        """Lines 14–15."""
        step = torch.full((self.models,), self.server_step, dtype=torch.float64)
        if not self.normalise:
            step *= mean.log_total.softmax(0)  # Σ_i α_i w[i, k], about 1/K
        return add(server, mean.mean(), step)

    def serve(self, received: Tree, own: Tree) -> Tree:
        return received

    def diagnose(self, losses: Tensor, share: Tensor, clients: Tensor) -> dict[str, Tensor]:
        lam, ideal = self._lambda_and_ideal(share, clients)
        alpha, w = scalarization.weights(losses.double(), self.mu, lam, ideal)
        return {"alpha": alpha, "w": w, "g": scalarization.stch_set(losses.double(), self.mu, lam, ideal)}

    def _lambda_and_ideal(self, share: Tensor, clients: Tensor) -> tuple[Tensor, Tensor | None]:
        """Weighting losses by sample share is a preference: λ_i n_i / Σ_j n_j (L[i, k] − z*_i)."""
        lam = share.cpu().double() if self.weigh_samples else torch.ones(len(clients), dtype=torch.float64)
        if self.preference is not None:
            lam = lam * torch.tensor(self.preference).double()[clients]
        return lam, None if self.ideal is None else torch.tensor(self.ideal).double()[clients]
