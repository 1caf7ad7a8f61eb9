"""FedDBE: what is peculiar to a client's features becomes a bias of its own; what is shared is held near a common mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfew.axes import add_model_axis, drop_model_axis, expanded
from fedfew.local import Local, Loss, Through
from fedfew.methods.allowed import LayerName, NotNegative, ZeroToOne
from fedfew.methods.base import Family, Fresh, Method, Outcome, Reply
from fedfew.models.split import linear_head
from fedfew.stack import Tree, add, branch, named_leaves, stack, subtract, tensor
from fedfew.weighted_mean import WeightedMean


@dataclass(frozen=True)
class FedDBE(Method):
    """FedAvg with a personal bias of the features and a mean of the features that all clients agree on (Zhang et al. 2023,
    "Eliminating Domain Bias for Federated Learning in Representation Space", Algorithm 1).

    The head sees z + p_i: z are the features, the bias p_i starts at 0, is trained with the model and stays with the client (the
    paper's PRBM). The loss gets κ·mean(½·(z̄_i − z̄)²) over the features' components (the paper's MR): z̄ is the consensus, the
    mean feature under the initial model over the clients of the first round, and z̄_i = (1 − μ)·(client i's mean feature under the
    model as received) + μ·(the batch's mean). The paper tracks the first of these over batches; here it is computed exactly.
    """

    kappa: NotNegative = 1.0
    """κ, the pull of a client's mean feature to the consensus. 0: only the personal bias is left."""
    mean_momentum: ZeroToOne = 0.5
    """μ, the weight of the batch's mean in the client's. Gradients flow through the batch alone, so 0 has the effect of κ = 0."""
    head: LayerName | None = None
    """The linear layer that is the head, by name; it needs a bias. None: the model's last linear layer."""

    name: ClassVar[str] = "feddbe"
    family: ClassVar[Family] = "personal parts"
    summary: ClassVar[str] = "FedAvg with a personal bias of the features, and mean features held near a consensus"
    when: ClassVar[str] = "clients differ in labels or inputs, and the personal part must be tiny: one number per feature"
    served: ClassVar[str] = "the global model as received with the client's own bias of the features"
    adapted: ClassVar[str] = "the same after the client's local epochs"
    notes: ClassVar[frozenset[str]] = frozenset({"consensus"})

    def without_effect(self, clients: int, layers: int, optimizer: str) -> list[str]:
        lines = self.unused("kappa is 0", "mean_momentum") if self.kappa == 0 else []
        return lines + (self.unused("mean_momentum is 0", "kappa") if self.mean_momentum == 0 else [])

    def head_layer(self, parameters: Mapping[str, Tensor]) -> str | None:
        return linear_head(parameters, self.head, bias=True)

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        model = fresh(0)
        head = linear_head(dict(named_leaves(model)), self.head, bias=True)
        weight = tensor(model, f"{head}.weight")
        consensus: Tree = {"mean": weight.new_zeros(1, weight.shape[1]), "known": weight.new_zeros(1)}
        return {"model": stack([model]), "consensus": consensus}, {head: weight.new_zeros(clients, weight.shape[1])}

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        model, consensus = branch(received, "model"), branch(received, "consensus")
        mean = local.features(model, next(iter(own))).sum(1) / local.counts[:, None]  # [C, features]
        params: Tree = {"model": model, "bias": add_model_axis(own)}
        trained, losses = local.train(params, self.objective, context=consensus | {"own": mean[:, None]})
        sent: Tree = {"model": subtract(branch(trained, "model"), model), "mean": mean[:, None]}
        kept = drop_model_axis(branch(trained, "bias"))
        return Outcome(Reply(sent, losses, local.counts), kept, adapted=self.serve(trained, kept))

    def objective(self, loss: Loss, params: Tree, context: Tree) -> tuple[Tensor, Tensor]:
        seen: list[Tensor] = []
        (head, bias), *_ = named_leaves(branch(params, "bias"))

        def shift(features: Tensor) -> Tensor:
            seen.append(features)
            return features + bias

        value = loss(branch(params, "model"), Through(head, shift))
        weight = loss.weight if loss.weight.ndim == 1 else loss.weight.sum(-1)
        of_batch = weight.to(seen[-1].dtype) @ seen[-1]
        apart = (1 - self.mean_momentum) * tensor(context, "own") + self.mean_momentum * of_batch - tensor(context, "mean")
        return value + self.kappa / 2 * tensor(context, "known") * apart.square().mean(), value.detach()

    def aggregate(self, server: Tree, mean: WeightedMean) -> Tree:
        found, consensus = mean.mean(), branch(server, "consensus")
        known = tensor(consensus, "known")
        agreed = torch.where(known[:, None] > 0, tensor(consensus, "mean"), tensor(found, "mean"))
        model = add(branch(server, "model"), branch(found, "model"))
        return {"model": model, "consensus": {"mean": agreed, "known": torch.ones_like(known)}}

    def serve(self, received: Tree, own: Tree) -> Tree:
        """head(z + p) = W·z + (W·p + b): the bias of the features becomes one of the head."""
        (head, p), *_ = named_leaves(own)
        model = expanded(branch(received, "model"), len(p))
        shift = torch.einsum("ckof,cf->cko", tensor(model, f"{head}.weight"), p)
        return model | {f"{head}.bias": tensor(model, f"{head}.bias") + shift}

    def server_models(self, server: Tree) -> Tree:
        return branch(server, "model")
