"""FedFew: K models for M clients."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedfew import scalarization
from fedfew.axes import add_model_axis, drop_model_axis
from fedfew.local import Local
from fedfew.methods import confirmation
from fedfew.methods.allowed import LayerName, NumberOfModels, Positive, Share, is_number
from fedfew.methods.base import Family, Fresh, Method, Outcome, Reply
from fedfew.methods.one_body import HeadsOnOneBody, whole_models
from fedfew.models.split import head_names
from fedfew.stack import Tree, add, branch, leaves, named_leaves, stack, subtract, take, tensor, tree_map
from fedfew.weighted_mean import WeightedMean, normalised

LARGEST_GAIN = 10.0  # with μ = 0.2 honest clients reach 5


@dataclass(frozen=True)
class FedFew(Method):
    """K models for M clients by smooth Tchebycheff set scalarization (Guo et al. 2026, Algorithm 1).

    Every client trains all K models and reports its K losses; the server moves model k by the clients' updates, weighted by
    α_i·w[i, k]: α favours clients that no model serves well, w the model that serves the client best. Each client then uses the
    model with the least loss on its own training data.

    Defaults are the paper's where a field says nothing else. :meth:`as_published` is what the published code does.
    """

    models: NumberOfModels = 3
    """K. 1: a single model, clients weighted by α."""
    mu: Positive = 0.2
    """Smoothing μ, in units of loss (with scale_free off: of n_i/N times a loss, where the paper takes 0.01). → 0: a client
    counts for its best model only, and only the worst client counts; → ∞: all alike."""
    scale_free: bool = True
    """Sample counts weigh the clients in the sum, g = μ log Σ_i p_i / Σ_k exp(−L[i, k]/μ) with p_i = n_i/N (ours): μ means the
    same whatever the number and sizes of clients, and K = 1 with μ → ∞ is FedAvg. Off: counts multiply the losses, L[i, k]·n_i/N
    (the paper's footnote); with clients of unequal size the largest then takes nearly all of α while losses are high."""
    init_models: Literal["distinct", "copies"] = "distinct"
    """K distinct initialisations (ours), or K copies of one, which only batch order makes differ (published)."""
    normalise: bool = True
    """Divide each model's weights by their sum over clients, so that it moves a whole step (ours). Off (the paper's Eq. 8), it
    moves about 1/K of one: the model that leads moves more, leads further, and the others starve."""
    weigh_samples: bool = True
    """Let sample counts matter, as scale_free says. Off: all clients alike."""
    loss_at: Literal["training", "received"] = "training"
    """The loss reported: running mean over the last local epoch (published; costs nothing), or a pass over the training data at
    the model as received."""
    send: Literal["update", "gradient"] = "update"
    """What is sent: trained − received (published), or the gradient at the locally trained point (Algorithm 1, line 8)."""
    server_step: Positive = 1.0
    """Step on the server: 1 for updates (published); for gradients the paper takes the learning rate η."""
    most_share: Share | None = None
    """The largest α_i, the share of a round's weights that a client can get by reporting high losses; or its share of the
    samples, or 3 / number of clients, where that is more (docs/robustness.md). 1: no limit (paper). None: 0.5, and 1 with
    scale_free off."""
    preference: tuple[float, ...] | None = None
    """λ, one number per client: how much its loss counts in the maximum. None: 1 for all (paper)."""
    ideal: tuple[float, ...] | None = None
    """z*, one number per client: the loss it could reach. None: 0 for all (paper)."""
    share: Literal["none", "body"] = "none"
    """What the K models have in common. "none": nothing (paper). "body": all but the head, so that a message carries one body and
    K heads and a client runs its body once for all heads. The body then needs no normalisation: all its α_i·w[i, k] sum to one.
    On its way back into the body, head k's gradient counts w[i, k], taken from the losses the client reported last."""
    head: LayerName | None = None
    """With share="body": the submodule that is the head, by name. None: the model's last linear layer."""

    name: ClassVar[str] = "fedfew"
    family: ClassVar[Family] = "few models"
    summary: ClassVar[str] = "K models for M clients; clients that no model fits weigh most"
    when: ClassVar[str] = "unknown groups of clients, the worst client matters, or new clients must choose without training"
    served: ClassVar[str] = "of the K server models, the one with the least loss on the client's training data"
    adapted: ClassVar[str] = "of the client's K locally trained copies, the one with the least training loss"

    @classmethod
    def as_published(cls, **changes: Any) -> FedFew:
        """The published code's form: K copies of one initialisation, weights not normalised per model, counts on the losses."""
        return replace(cls(mu=0.01, scale_free=False, init_models="copies", normalise=False), **changes)

    def check(self) -> None:
        if self.share == "body":
            self.require(self.send == "update", "send", "'update' where share is 'body'")
            same = self.models > 1 and self.init_models == "copies"
            self.require(
                not same, "init_models", "'distinct' where share is 'body' (equal heads see equal batches and stay equal)"
            )
        else:
            self.require(self.head is None, "head", "None where share is 'none'")
        for setting in ("preference", "ideal"):
            given = getattr(self, setting)
            self.require(given is None or isinstance(given, tuple | list), setting, "None or a list of numbers, one per client")
        if self.preference is not None:
            positive = all(map(is_number, self.preference)) and any(self.preference)
            self.require(positive, "preference", "a finite number ≥ 0 for every client, > 0 for one of them")
        if self.ideal is not None:
            self.require(all(is_number(z, -math.inf) for z in self.ideal), "ideal", "a finite number for every client")

    def without_effect(self, clients: int, layers: int, optimizer: str) -> list[str]:
        lines = self.unused("models is 1", "init_models", "normalise") if self.models == 1 else []
        return lines if self.weigh_samples else lines + self.unused("weigh_samples is off", "scale_free")

    def check_against(self, clients: int) -> None:
        super().check_against(clients)
        for setting in ("preference", "ideal"):
            values = getattr(self, setting)
            self.require(values is None or len(values) == clients, setting, f"one number for each of {clients} clients")

    def smoothed(self, factor: float) -> FedFew:
        return self if factor == 1 else replace(self, mu=self.mu * factor)

    @property
    def replicas(self) -> int:
        return self.models if self.share == "none" else 1

    @property
    def checks_losses(self) -> bool:
        return self.models > 1 and self.share == "none"

    def confirmed(self, losses: Tensor, unseen: Tensor, share: Tensor, spread: float = 0.0) -> float:
        return confirmation.confirmed(losses, unseen, share, self.smoothing(len(losses)), spread)

    def smoothing(self, clients: int) -> float:
        """μ in units of loss, on average over this many clients."""
        times_share = self.weigh_samples and not self.scale_free  # on average 1 / number of clients
        return self.mu * clients if times_share else self.mu

    def loss_bound(self, median: float) -> float:
        """With a cap on shares, α_i is at most 10 times that of a client with the median loss, but for sample counts."""
        bound = super().loss_bound(median)
        return bound if self.share_cap >= 1 else min(bound, median + self.mu * math.log(LARGEST_GAIN))

    @property
    def share_cap(self) -> float:
        if self.most_share is None:
            return 0.5 if self.scale_free else 1.0
        return self.most_share

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        models = [fresh(k if self.init_models == "distinct" else 0) for k in range(self.models)]
        if self.share == "none":
            return stack(models), {}
        names = head_names(dict(named_leaves(models[0])), self.head)
        body: Tree = {name: t[None] for name, t in named_leaves(models[0]) if name not in names}
        heads = stack([{name: model[name] for name in names} for model in models])
        own: Tree = {"w": torch.full((clients, self.models), 1 / self.models, device=leaves(heads)[0].device)}
        if self.preference is not None:
            own["preference"] = torch.tensor(self.preference, dtype=torch.float64, device=leaves(heads)[0].device)
        return {"body": body, "heads": heads}, own

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        """Lines 3–11."""
        if self.share == "body":
            return self._client_with_one_body(received, own, local)
        trained, losses = local.train(received)
        if self.loss_at == "received":
            losses = local.losses(received)
        if self.send == "gradient":
            gradient, _ = local.gradient(trained)
            sent = tree_map(torch.neg, gradient)
        else:
            sent = subtract(trained, received)
        return Outcome(Reply(sent, losses, local.counts, local.unseen_losses(received)), own, adapted=trained)

    def _client_with_one_body(self, received: Tree, own: Tree, local: Local) -> Outcome:
        one_replica: Tree = {"body": received["body"], "heads": add_model_axis(branch(received, "heads"))}
        trained, losses = local.train(one_replica, HeadsOnOneBody(self.head), context={"w": tensor(own, "w")[:, None]})
        trained["heads"], losses = drop_model_axis(branch(trained, "heads")), losses[:, 0]
        if self.loss_at == "received":
            losses = local.losses(whole_models(received))
        lam = local.share if self.weigh_samples and not self.scale_free else torch.ones_like(local.share)
        if self.preference is not None:
            lam = lam * tensor(own, "preference")
        usable = losses.isfinite()
        w = torch.softmax((-lam[:, None] * losses / self.mu).masked_fill(~usable, -torch.inf), 1)
        kept = own | {"w": w.to(tensor(own, "w").dtype)}
        return Outcome(Reply(subtract(trained, received), losses, local.counts), kept, adapted=whole_models(trained))

    def log_weights(self, reply: Reply, share: Tensor, clients: Tensor) -> Tensor:
        """log(λ_i α_i w[i, k]) but for a constant: line 13."""
        log_alpha, log_w = scalarization.log_weights(reply.losses.cpu().double(), self.mu, **self._client_terms(share, clients))
        if self.preference is not None:
            log_alpha = log_alpha + torch.tensor(self.preference, dtype=torch.float64)[clients].log()
        return log_alpha[:, None] + log_w

    def log_whole(self, reply: Reply, share: Tensor, clients: Tensor) -> Tensor | None:
        """log α_i but for the same constant: α sums to one, λ_i α_i w[i, k] does not unless every λ_i is 1."""
        if self.preference is None:
            return None
        return scalarization.log_weights(reply.losses.cpu().double(), self.mu, **self._client_terms(share, clients))[0]

    def aggregate(self, server: Tree, mean: WeightedMean) -> Tree:
        """Lines 14–15."""
        step: float | Tensor = self.server_step
        if not self.normalise:
            step = step * mean.shares  # Σ_i λ_i α_i w[i, k], about 1/K where every λ_i is 1
        if self.share == "none":
            return add(server, mean.mean(), step)
        moves, shares = mean.mean(), mean.shares
        if self.normalise and self.preference is not None:
            shares = shares / shares.sum().clamp_min(torch.finfo(shares.dtype).tiny)
        body = tree_map(  # Σ_i λ_i α_i (trained − received), normalised: divided by Σ_i λ_i α_i
            lambda t: torch.tensordot(shares.to(t), t, 1)[None], branch(moves, "body")
        )
        return {
            "body": add(branch(server, "body"), body, self.server_step),
            "heads": add(branch(server, "heads"), branch(moves, "heads"), step),
        }

    def serve(self, received: Tree, own: Tree) -> Tree:
        return received if self.share == "none" else whole_models(received)

    def server_models(self, server: Tree) -> Tree:
        return server if self.share == "none" else take(whole_models(tree_map(lambda t: t[None], server)), 0)

    def diagnose(self, log_weights: Tensor, log_alpha: Tensor) -> dict[str, Tensor]:
        most = log_alpha.amax()
        g = self.mu * (most + (log_alpha - most).exp().sum().log())
        return {"alpha": normalised(log_alpha), "w": normalised(log_weights, 1), "g": g}

    def _client_terms(self, share: Tensor, clients: Tensor) -> dict[str, Tensor | None]:
        """λ, z* and p of these clients. Weighting losses by sample share is a preference: λ_i n_i / Σ_j n_j (L[i, k] − z*_i)."""
        counts = share.cpu().double()
        lam = counts if self.weigh_samples and not self.scale_free else None
        if self.preference is not None:
            given = torch.tensor(self.preference, dtype=torch.float64)[clients]
            lam = given if lam is None else lam * given
        ideal = None if self.ideal is None else torch.tensor(self.ideal, dtype=torch.float64)[clients]
        return {"preference": lam, "ideal": ideal, "client_weights": counts if self.weigh_samples and self.scale_free else None}
