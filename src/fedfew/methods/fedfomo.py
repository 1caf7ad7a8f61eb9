"""FedFomo: every client has a model of its own and moves it towards those of others that do better on its held-out data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedfew.axes import add_model_axis, copies, drop_model_axis
from fedfew.local import Local
from fedfew.methods.allowed import AtLeastOne, OpenShare
from fedfew.methods.base import Family, Fresh, Method, Outcome, Reply
from fedfew.stack import Tree, branch, leaves, named_leaves, put, tensor, tree_map
from fedfew.util.spelling import counted

UNSEEN = 1e6  # the affinity to a client whose model was not received yet: those are requested first


@dataclass(frozen=True)
class FedFomo(Method):
    """Client i starts a round from θ_i + Σ_n w_n·(θ_n − θ_i) over the models θ_n that it received, where w_n is proportional to
    max(0, (L_i(θ_i) − L_i(θ_n)) / ‖θ_n − θ_i‖) and sums to one, or is 0 throughout where no model is better; L_i is the loss on
    samples that the client does not train on (Zhang et al. 2021, "Personalized Federated Learning with First Order Model
    Optimization", Algorithm 1). The server keeps every client's last model. Where a client receives some of them only, these are
    the ones with the largest sum of weights so far, and first of all those it has not seen; the paper adds random choices.
    """

    models: AtLeastOne | None = None
    """How many other models a client receives per round. None: all."""
    holdout: OpenShare = 0.2
    """The share of a client's training samples that it does not train on but compares models by; one sample at least. They are
    its last ones, so samples must not be sorted by label."""

    name: ClassVar[str] = "fedfomo"
    family: ClassVar[Family] = "one model per client"
    summary: ClassVar[str] = "each client moves its model towards those of others that do better on its held-out data"
    when: ClassVar[str] = "groups of few clients with samples to spare; each receives many models, and others see its own"
    served: ClassVar[str] = "the client's own model"
    adapted: ClassVar[str] = "the client's own model (it is kept from round to round, so the two scores are the same)"

    def without_effect(self, clients: int, layers: int, optimizer: str) -> list[str]:
        others = clients - 1
        return [] if self.models is None else self.beyond("models", others, f"there are {counted(others, 'other client')}")

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        model = fresh(0)
        everyones = copies(model, clients)
        place = torch.arange(clients, device=leaves(model)[0].device)
        affinity = UNSEEN - (place - place[:, None]) % clients  # of those not seen, the next ones first
        affinity = affinity.double().fill_diagonal_(-1.0)  # no client needs its own
        return {"sent": everyones, "affinity": affinity}, tree_map(torch.clone, everyones)

    def dispatch(self, server: Tree, clients: Tensor) -> Tree:
        sent, chosen = branch(server, "sent"), self.chosen(server, clients)
        return tree_map(lambda t: t[None], sent) if chosen is None else tree_map(lambda t: t[chosen.to(t.device)], sent)

    def chosen(self, server: Tree, clients: Tensor) -> Tensor | None:
        """Whose models the clients receive, [C, models]; None: every client receives all models."""
        affinity = tensor(server, "affinity")
        if self.models is None or self.models >= len(affinity) - 1:
            return None
        return affinity[clients.to(affinity.device)].topk(self.models, 1).indices

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        mine = add_model_axis(own)
        kept, compared = held_out(local, self.holdout)
        gain = compared.losses(mine) - compared.losses(received)  # [C, models]
        weights = (gain / distances(mine, received)).nan_to_num(0.0, 0.0, 0.0).clamp_min(0)
        weights = weights / weights.sum(1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)

        def moved(a: Tensor, b: Tensor) -> Tensor:
            if not a.is_floating_point():
                return a
            return a + torch.einsum("cm,cm...->c...", weights.to(a), (b - a).expand(len(a), *b.shape[1:]))[:, None]

        trained, losses = kept.train(tree_map(moved, mine, received))
        sent: Tree = {"model": trained, "weights": weights[:, None]}
        return Outcome(Reply(sent, losses, local.counts), drop_model_axis(trained), adapted=trained)

    def absorb(self, server: Tree, clients: Tensor, reply: Reply) -> Tree:
        sent, affinity = tree_map(torch.clone, branch(server, "sent")), tensor(server, "affinity").clone()
        put(sent, clients, drop_model_axis(branch(reply.update, "model")))
        at, chosen = clients.to(affinity.device), self.chosen(server, clients)
        if chosen is None:
            chosen = torch.arange(len(affinity), device=affinity.device).expand(len(clients), -1)
        before = affinity[at].gather(1, chosen)
        seen = before.where((before < UNSEEN / 2) & (before >= 0), 0.0)
        after = (seen + tensor(reply.update, "weights")[:, 0].to(seen)).where(before >= 0, before)
        affinity[at] = affinity[at].scatter(1, chosen, after)
        return {"sent": sent, "affinity": affinity}

    def serve(self, received: Tree, own: Tree) -> Tree:
        return add_model_axis(own)

    def server_models(self, server: Tree) -> Tree:
        return {}  # one of every client, and none for all


def held_out(local: Local, share: float) -> tuple[Local, Local]:
    """The clients with their first samples, and with the others; a client with a single sample uses it for both.

    A sample that would be a batch by itself is held out, too: BatchNorm cannot train on it.
    """
    samples, n = local.samples, local.samples.count
    out = (share * n).round().to(n.dtype).clamp_min(1)
    rest = (n - out).clamp_min(1)
    alone = (local.engine.steps(rest, 1) > local.engine.steps(rest - 1, 1)) & (rest > 1)
    out, rest = out + alone, rest - alone.to(n.dtype)
    first = replace(samples, count=rest, longest=int(rest.max()))
    last = replace(samples, start=samples.start + n - out, count=out, longest=int(out.max()))
    return replace(local, samples=first), replace(local, samples=last)


def distances(mine: Tree, others: Tree) -> Tensor:
    """‖θ_n − θ_i‖ over parameters and buffers, [C, models]."""
    theirs = dict(named_leaves(others))
    pairs = [(_flat(a), _flat(theirs[name])) for name, a in named_leaves(mine) if a.is_floating_point()]
    squares = [torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square() for a, b in pairs]
    return torch.stack(squares).sum(0)[:, 0].sqrt()


def _flat(tensor: Tensor) -> Tensor:
    """[C, K, …] → [C, K, numbers], of which a parameter without axes has one."""
    return tensor.reshape(*tensor.shape[:2], -1)
