"""FedALA: before it trains, a client learns weight by weight how much of its last model to mix into the global one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfew.axes import add_model_axis, drop_model_axis, expanded
from fedfew.local import Local, Loss
from fedfew.methods.allowed import AtLeastOne, Positive, ZeroOrMore
from fedfew.methods.base import Family, Fresh, Outcome, Reply
from fedfew.methods.fedavg import FedAvg
from fedfew.models.split import last_layers
from fedfew.stack import Tree, branch, leaves, named_leaves, subtract, tensor, tree_map
from fedfew.util.spelling import counted


@dataclass(frozen=True)
class FedALA(FedAvg):
    """FedAvg whose clients start local training from Θ̂_i = Θ_i + (Θ − Θ_i) ⊙ W_i in the last layers, and from the global model Θ
    in the others; Θ_i is the client's model after its last local training (Zhang et al. 2023, "FedALA: Adaptive Local Aggregation
    for Personalized Federated Learning", Algorithm 1).

    The weights W_i, one for each parameter, start at 1 and are kept from round to round. They are learned by SGD on F_i(Θ̂_i) with
    the models fixed, and projected to [0, 1]. Here all of a client's samples are used and every round takes the same number of
    epochs; the paper uses 80 % of the samples, and the first time as many epochs as it takes to converge.
    """

    layers: AtLeastOne = 2
    """p: how many of the last layers are mixed. As many as the model has: all."""
    eta: Positive = 100.0
    """η, the learning rate of the weights W; of SGD (with Adam it has no effect)."""
    ala_epochs: ZeroOrMore = 1
    """Epochs on the weights W per round. 0: FedAvg."""

    name: ClassVar[str] = "fedala"
    family: ClassVar[Family] = "one model per client"
    summary: ClassVar[str] = "each client mixes its last model into the global one, weight by weight, before it trains"
    when: ClassVar[str] = "a good global model exists, clients differ from it, and messages must be FedAvg's"
    served: ClassVar[str] = "the global model as received with the client's last model mixed in by its weights"
    adapted: ClassVar[str] = "the mix of the client's last model and the global one, after its local epochs"

    def without_effect(self, clients: int, layers: int, optimizer: str) -> list[str]:
        if self.ala_epochs == 0:
            return self.unused("ala_epochs is 0", "layers", "eta")
        lines = [] if optimizer == "sgd" else self.unused(f"the optimizer is {optimizer}", "eta")
        return lines + self.beyond("layers", layers, f"the model has {counted(layers, 'layer')}")

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        server, _ = super().init(fresh, clients)
        model = fresh(0)
        mixed = [name for name in last_layers(dict(named_leaves(model)), self.layers) if name not in fresh.buffers]
        last = {name: tensor(model, name).expand(clients, *tensor(model, name).shape).clone() for name in mixed}
        return server, {"last": dict(last), "kept": tree_map(torch.zeros_like, dict(last))}  # kept: 1 − W

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        states = add_model_axis(own)
        kept = branch(states, "kept")
        if self.ala_epochs:
            rate = torch.full_like(local.share, self.eta / local.lr)[:, None].to(leaves(kept)[0].dtype)
            context: Tree = {"global": received, "last": branch(states, "last"), "rate": rate}
            trained, _ = local.train(
                {"kept": kept}, self.objective, context, epochs=self.ala_epochs, project=keep_in_unit_interval
            )
            kept = branch(trained, "kept")
        start = mixed(received, branch(states, "last"), kept)
        model, losses = local.train(start, first_epoch=self.ala_epochs)
        last: Tree = {name: model[name] for name in kept}
        new: Tree = drop_model_axis({"last": last, "kept": kept})
        return Outcome(Reply(subtract(model, received), losses, local.counts), new, adapted=model)

    def objective(self, loss: Loss, params: Tree, context: Tree) -> tuple[Tensor, Tensor]:
        """F_i(Θ̂_i), scaled so that a step of SGD with the run's learning rate is one with η."""
        value = loss(mixed(branch(context, "global"), branch(context, "last"), branch(params, "kept")))
        return tensor(context, "rate") * value, value.detach()

    def serve(self, received: Tree, own: Tree) -> Tree:
        states = add_model_axis(own)
        clients = len(leaves(own)[0])
        everywhere = expanded(received, clients)
        return mixed(everywhere, branch(states, "last"), branch(states, "kept"))


def mixed(model: Tree, last: Tree, kept: Tree) -> Tree:
    """Θ + (Θ_i − Θ) ⊙ (1 − W) in the layers that are mixed. Written so that with W = 1 it is Θ to the last bit."""
    return model | {name: tensor(model, name) + (t - tensor(model, name)) * tensor(kept, name) for name, t in named_leaves(last)}


def keep_in_unit_interval(params: Tree) -> None:
    for t in leaves(params):
        t.clamp_(0, 1)
