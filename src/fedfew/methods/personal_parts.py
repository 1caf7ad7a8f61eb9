"""What methods have in common whose clients share some tensors of a model, keep the others, and train all of them at once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedfew.axes import add_model_axis, drop_model_axis, expanded
from fedfew.local import Local
from fedfew.methods.base import Family, Fresh, Method, Outcome, Reply
from fedfew.stack import Tree, add, leaves, named_leaves, stack, subtract
from fedfew.weighted_mean import WeightedMean


@dataclass(frozen=True)
class PersonalParts(Method):
    """A client trains the model that is made of what it received and what it kept, sends the change of the shared part, and keeps
    the rest. The server averages shared parts by number of samples."""

    family: ClassVar[Family] = "personal parts"

    @abstractmethod
    def personal(self, model: Mapping[str, Tensor]) -> Collection[str]:
        """The names, out of those of a model's parameters and buffers, of what stays with the client."""

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        model = fresh(0)
        kept = set(self.personal(dict(named_leaves(model))))
        if len(kept) == len(model):
            raise ValueError(f"{self.name}: all of the model would stay with the clients, nothing is left to share; use local")
        own = {name: t.expand(clients, *t.shape).clone() for name, t in named_leaves(model) if name in kept}
        return stack([{name: t for name, t in model.items() if name not in kept}]), dict(own)

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        trained, losses = local.train(received | add_model_axis(own))
        sent = {name: trained[name] for name in received}
        kept: Tree = {name: trained[name] for name in own}
        return Outcome(Reply(subtract(sent, received), losses, local.counts), drop_model_axis(kept), adapted=trained)

    def aggregate(self, server: Tree, mean: WeightedMean) -> Tree:
        return add(server, mean.mean())

    def serve(self, received: Tree, own: Tree) -> Tree:
        if not own:
            return received
        clients = len(leaves(own)[0])
        return expanded(received, clients) | add_model_axis(own)

    def server_models(self, server: Tree) -> Tree:
        return {}  # a part of a model is none
