"""FedBABU: the body is trained by all with a fixed head; each client then fine-tunes the model for itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedfew.axes import add_model_axis, copies, expanded
from fedfew.local import Local
from fedfew.methods.allowed import AtLeastOne, LayerName
from fedfew.methods.base import Family, Fresh, Method, Outcome, Reply
from fedfew.methods.fedrep import whole
from fedfew.models.split import head_names
from fedfew.stack import Tree, add, branch, finite, leaves, named_leaves, put, stack, subtract, take, tensor, tree_map
from fedfew.weighted_mean import WeightedMean


@dataclass(frozen=True)
class FedBABU(Method):
    """Rounds train and average the body alone; the head keeps its random initial values, the same at all clients (Oh, Kim and
    Yun 2022, "FedBABU: Toward Enhanced Representation for Federated Image Classification", Algorithm 1). A client personalises by
    fine-tuning: it starts from the body as received, never from its own trained one, with the initial head.

    The paper fine-tunes once, when training has ended. Here a client keeps the body that it received last, and fine-tunes it when
    its model is needed: a round is scored, a checkpoint is written, or the run ends. Rounds in between cost as much as FedAvg's.
    A client whose fine-tuning diverges keeps the model that it started from, which a line reports.
    """

    head: LayerName | None = None
    """The submodule that is the head, by name. None: the model's last linear layer."""
    finetune: Literal["whole", "head", "body"] = "whole"
    """What fine-tuning trains."""
    finetune_epochs: AtLeastOne = 10
    """τ_f: epochs of fine-tuning."""

    name: ClassVar[str] = "fedbabu"
    family: ClassVar[Family] = "personal parts"
    summary: ClassVar[str] = "a shared body trained under a fixed random head; each client fine-tunes the model"
    when: ClassVar[str] = "label skew, and new clients must become good after a few epochs of fine-tuning"
    served: ClassVar[str] = "the client's fine-tuned model, from the body that it received in its last round"
    adapted: ClassVar[str] = "the client's fine-tuned model (it is kept from round to round, so the two scores are the same)"

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        model = fresh(0)
        names = head_names(dict(named_leaves(model)), self.head)
        head: Tree = {name: model[name] for name in names}
        body: Tree = {name: t for name, t in model.items() if name not in head}
        own = copies({"head": head, "model": model}, clients)
        return stack([body]), own | {"untuned": torch.zeros(clients, dtype=torch.int64, device=leaves(model)[0].device)}

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        head = add_model_axis(branch(own, "head"))  # initial
        body, losses = local.train(received, whole, context=head)
        model = expanded(received, len(local)) | head
        # The round whose body waits for fine-tuning; 0: none does; −r: fine-tuning that of round r diverged.
        untuned = torch.full_like(tensor(own, "untuned"), local.round)
        kept: Tree = {"head": branch(own, "head"), "model": tree_map(lambda t: t[:, 0].clone(), model), "untuned": untuned}
        return Outcome(Reply(subtract(body, received), losses, local.counts), kept, adapted=model)

    def finish(self, own: Tree, local: Local) -> Tree:
        """Fine-tune the models that wait for it, with the batches and the learning rate of the round in which each arrived."""
        own = tree_map(torch.clone, own)
        untuned = tensor(own, "untuned")
        for number in untuned.unique().tolist():
            if number > 0:
                at = (untuned == number).nonzero()[:, 0].cpu()
                model, good = self.fine_tuned(take(own, at.to(untuned.device)), local.of(at, number))
                put(branch(own, "model"), at, model)
                untuned[at.to(untuned.device)] = torch.where(good, 0, -number)
        return own

    def fine_tuned(self, own: Tree, local: Local) -> tuple[Tree, Tensor]:
        """The models after fine-tuning, and for which clients it did not diverge."""
        start, names = add_model_axis(branch(own, "model")), branch(own, "head").keys()
        head: Tree = {name: t for name, t in start.items() if name in names}
        body: Tree = {name: t for name, t in start.items() if name not in names}
        parts: dict[str, tuple[Tree, Tree]] = {"whole": (start, {}), "head": (head, body), "body": (body, head)}
        tuned, fixed = parts[self.finetune]
        tuned, _ = local.train(tuned, whole, context=fixed, epochs=self.finetune_epochs, first_epoch=local.engine.local_epochs)
        good = finite(tuned)
        kept = tree_map(lambda a, b: torch.where(good.reshape(-1, *[1] * (a.ndim - 2)), a[:, 0], b[:, 0]), fixed | tuned, start)
        return kept, good

    def diverged(self, own: Tree) -> Tensor:
        return -tensor(own, "untuned").clamp(max=0)

    def aggregate(self, server: Tree, mean: WeightedMean) -> Tree:
        return add(server, mean.mean())

    def serve(self, received: Tree, own: Tree) -> Tree:
        return add_model_axis(branch(own, "model"))

    def server_models(self, server: Tree) -> Tree:
        return {}  # the head is at the clients
