"""FedRoD: a generic head trained as if all classes were equally frequent, and a personal head beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfew.axes import add_model_axis, drop_model_axis, expanded
from fedfew.local import Local, Loss, with_features
from fedfew.methods.allowed import LayerName, NotNegative
from fedfew.methods.base import Family, Fresh, Outcome, Reply
from fedfew.methods.fedavg import FedAvg
from fedfew.models.split import linear_head
from fedfew.stack import Tree, branch, leaves, named_leaves, subtract, tensor

ABSENT = 1e-6  # the count of a class that a client has no sample of: with 0 its logarithm would not be finite


@dataclass(frozen=True)
class FedRoD(FedAvg):
    """Body and generic head are trained as one model with the balanced softmax, log n_i,c added to the logits of class c, and
    averaged as in FedAvg; a personal head P_i, which stays with the client, learns what to add to the generic logits to fit the
    client's own data (Chen and Chao 2022, "On Bridging Generic and Personalized Federated Learning for Image Classification",
    section 4). The personal head moves nothing but itself: features and generic logits are fixed for it. P_i starts at 0.
    """

    gamma: NotNegative = 1.0
    """γ: the generic head sees logits + γ·log n_i,c in training. 0: no balancing, so the generic model is FedAvg's."""
    head: LayerName | None = None
    """The linear layer that is the head, by name; its outputs must be the logits. None: the model's last linear layer."""

    name: ClassVar[str] = "fedrod"
    family: ClassVar[Family] = "personal parts"
    needs_classes: ClassVar[bool] = True
    head_gives_logits: ClassVar[bool] = True
    summary: ClassVar[str] = "a generic model with a class-balanced loss, and a personal head that adds to its logits"
    when: ClassVar[str] = "label skew, and both a good global model and personal ones are wanted from one run"
    served: ClassVar[str] = "the global model as received, with the client's personal head added to the generic one"
    adapted: ClassVar[str] = "the same after the client's local epochs"

    def head_layer(self, parameters: Mapping[str, Tensor]) -> str | None:
        return linear_head(parameters, self.head)

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        server, _ = super().init(fresh, clients)
        model = dict(named_leaves(fresh(0)))
        head = linear_head(model, self.head)
        own = {name: t.new_zeros(clients, *t.shape) for name, t in model.items() if name.startswith(f"{head}.")}
        return server, dict(own)

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        weight = next(t for name, t in named_leaves(own) if name.endswith("weight"))
        counts = local.class_counts(weight.shape[1]).to(weight).clamp_min(ABSENT)
        params: Tree = {"model": received, "personal": add_model_axis(own)}
        trained, losses = local.train(params, self.objective, context={"offset": self.gamma * counts.log()[:, None]})
        model, personal = branch(trained, "model"), drop_model_axis(branch(trained, "personal"))
        return Outcome(Reply(subtract(model, received), losses, local.counts), personal, adapted=self.serve(model, personal))

    def objective(self, loss: Loss, params: Tree, context: Tree) -> tuple[Tensor, Tensor]:
        """Balanced loss of the generic head + loss of both heads together, of which only the personal one is differentiated."""
        personal = dict(named_leaves(branch(params, "personal")))
        head = next(iter(personal)).rpartition(".")[0]
        generic, features = with_features(loss, branch(params, "model"), head)
        added = torch.nn.functional.linear(features.detach(), personal[f"{head}.weight"], personal.get(f"{head}.bias"))
        value = loss.of(generic.detach() + added)
        return loss.of(generic + tensor(context, "offset")) + value, value.detach()

    def serve(self, received: Tree, own: Tree) -> Tree:
        """Both heads are linear in the same features, so their sum is one head."""
        model = expanded(received, len(leaves(own)[0]))
        return model | {name: tensor(model, name) + t[:, None] for name, t in named_leaves(own)}
