"""Clients that attack: what they send in place of an honest reply, to measure what a defence is worth (docs/robustness.md)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedfew import random_streams
from fedfew.local import Local
from fedfew.methods.base import Outcome
from fedfew.methods.wrapper import Wrapper
from fedfew.stack import Tree, from_named, named_leaves, tree_map

SIGN_FLIP = -5.0  # what an update is multiplied by
FORGED_LOSS = 1000.0
NOISE = 5.0  # length of the noise, in lengths of the client's honest update


@dataclass(frozen=True)
class Attacked(Wrapper):
    """A method some of whose clients reply falsely; what clients keep for themselves is the method's.

    sign-flip: the update times −5. noise: Gaussian noise in its place, five times as long. forged-loss: a loss of 1000 for all
    models, and an update of zeros. label-flip: honest replies about data with false labels, which the data hold. It is no method
    by itself: ``fedfew.train(…, attack="sign-flip", attackers=2)``.
    """

    attack: str
    attackers: tuple[int, ...]
    """Identities of the clients that attack."""

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        outcome = self.method.client(received, own, local)
        hostile = torch.isin(local.clients.cpu(), torch.tensor(self.attackers, dtype=torch.int64))
        if self.attack == "label-flip" or not bool(hostile.any()):  # flipped labels are in the data
            return outcome
        reply = outcome.reply
        if self.attack == "sign-flip":
            update = tree_map(lambda t: _where(hostile, (SIGN_FLIP * t).to(t.dtype), t), reply.update)
        elif self.attack == "noise":
            update = _with_noise(reply.update, hostile, local)
        else:
            update = tree_map(lambda t: _where(hostile, torch.zeros_like(t), t), reply.update)
            reply = replace(reply, losses=_where(hostile, torch.full_like(reply.losses, FORGED_LOSS), reply.losses))
        return replace(outcome, reply=replace(reply, update=update))


def _with_noise(update: Tree, hostile: Tensor, local: Local) -> Tree:
    """Gaussian noise for the hostile clients, as long as NOISE updates: a function of seed, round, client and position."""
    key = random_streams.count(random_streams.ATTACK, local.engine.seed, local.round, local.clients.cpu())
    found: dict[str, Tensor] = {}
    for number, (path, t) in enumerate(named_leaves(update)):
        flat = t.reshape(len(t), -1)
        noise = random_streams.normal(key[:, None] + number, torch.arange(flat.shape[1])).to(flat.device)
        length = flat.double().norm(dim=1, keepdim=True) / max(1, flat.shape[1]) ** 0.5
        noisy = (NOISE * length * noise).to(t.dtype).reshape(t.shape)
        found[path] = _where(hostile, noisy, t) if t.is_floating_point() else t
    return from_named(found)


def _where(hostile: Tensor, theirs: Tensor, honest: Tensor) -> Tensor:
    """Of the stack ``[C, …]``, ``theirs`` where the client is hostile."""
    return torch.where(hostile.to(honest.device).reshape(-1, *[1] * (honest.ndim - 1)), theirs, honest)
