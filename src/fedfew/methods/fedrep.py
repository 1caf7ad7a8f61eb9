"""FedRep: a body for all, a head for each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from torch import Tensor

from fedfew.axes import add_model_axis, copies, drop_model_axis, expanded
from fedfew.local import Local, Loss
from fedfew.methods.allowed import AtLeastOne, LayerName
from fedfew.methods.base import Family, Fresh, Method, Outcome, Reply
from fedfew.models.split import head_names
from fedfew.stack import Tree, add, leaves, named_leaves, stack, subtract
from fedfew.weighted_mean import WeightedMean


@dataclass(frozen=True)
class FedRep(Method):
    """Clients share a body φ (the representation) and keep heads h_i of their own (Collins et al. 2021, "Exploiting Shared
    Representations for Personalized Federated Learning", Algorithm 1).

    A round: train the head with the body as received, then the body with the head as trained; only the body is sent, and the
    server averages bodies by number of samples.
    """

    head: LayerName | None = None
    """The submodule that is the head, by name. None: the model's last linear layer."""
    head_epochs: AtLeastOne | None = None
    """τ: epochs on the head, before the body. None: as many as the run's local_epochs."""
    body_epochs: AtLeastOne | None = None
    """Epochs on the body, with the head fixed. None: as many as the run's local_epochs."""

    name: ClassVar[str] = "fedrep"
    family: ClassVar[Family] = "personal parts"
    summary: ClassVar[str] = "one shared body, one head per client, trained one after the other"
    when: ClassVar[str] = "label skew without the client's label prior, few classes per client; messages below a model's size"
    served: ClassVar[str] = "the body as received with the client's own head"
    adapted: ClassVar[str] = "the client's own head and the body, both after its local epochs"

    @classmethod
    def as_published(cls, **changes: Any) -> Self:
        """The published code's default: one epoch on the head, then the local epochs on the body."""
        return replace(cls(head_epochs=1), **changes)

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        params = fresh(0)
        names = head_names(dict(named_leaves(params)), self.head)
        head: Tree = {name: params[name] for name in names}
        body: Tree = {name: t for name, t in params.items() if name not in head}
        return stack([body]), copies(head, clients)

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        head_epochs = local.engine.local_epochs if self.head_epochs is None else self.head_epochs
        head, _ = local.train(add_model_axis(own), whole, context=received, epochs=head_epochs)
        body, losses = local.train(received, whole, context=head, epochs=self.body_epochs, first_epoch=head_epochs)
        reply = Reply(subtract(body, received), losses, local.counts)
        return Outcome(reply, drop_model_axis(head), adapted=body | head)

    def aggregate(self, server: Tree, mean: WeightedMean) -> Tree:
        return add(server, mean.mean())

    def serve(self, received: Tree, own: Tree) -> Tree:
        clients = len(leaves(own)[0])
        body = expanded(received, clients)
        return body | add_model_axis(own)

    def server_models(self, server: Tree) -> Tree:
        return {}  # a body alone is no model


def whole(loss: Loss, params: Tree, context: Tree) -> tuple[Tensor, Tensor]:
    """The loss of head and body together, of which only one is trained."""
    value = loss(context | params)
    return value, value.detach()
