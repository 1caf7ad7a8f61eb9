"""Which of the clients' models can be used: those whose loss and update are finite."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fedfew.methods.base import Outcome
from fedfew.stack import all_finite, everyone, finite, leaves, take, tree_map


def usable(outcome: Outcome) -> tuple[Tensor, Outcome]:
    """Positions (in the stack) of the clients that can be used, and the outcome for them alone.

    A model whose loss or update is not finite is left out for that client only: its loss becomes +inf and its update 0, and the
    other models of the client count as before. A client with no model left, or whose own state is not finite, is out.
    """
    reply = outcome.reply
    if all_finite({"losses": reply.losses, "update": reply.update, "own": outcome.own}):  # as in nearly every round
        return everyone(reply.losses.shape[0]), outcome
    pairs = reply.losses.isfinite()  # [C, K]
    if not all_finite(reply.update):
        for t in leaves(reply.update):
            pairs = pairs & t.reshape(*t.shape[:2], -1).isfinite().all(2)  # [C, 1] where all models take from the same
    ok = pairs.any(1)
    if leaves(outcome.own):  # a wrapped method may have an own state of empty branches
        ok = ok if all_finite(outcome.own) else ok & finite(outcome.own)
    at = ok.nonzero()[:, 0]
    if not bool(pairs.all()):
        losses = reply.losses.masked_fill(~pairs, torch.inf)
        reply = replace(reply, update=tree_map(partial(_zeroed, pairs=pairs), reply.update), losses=losses)
        outcome = replace(outcome, reply=reply)
    if len(at) < len(ok):
        unseen = None if reply.unseen is None else reply.unseen[at]
        reply = replace(reply, update=take(reply.update, at), losses=reply.losses[at], samples=reply.samples[at], unseen=unseen)
        mixture = None if outcome.mixture is None else outcome.mixture[at]
        outcome = Outcome(reply, take(outcome.own, at), take(outcome.adapted, at), mixture)
    return at.cpu(), outcome


def _zeroed(t: Tensor, pairs: Tensor) -> Tensor:
    """``t[C, K or 1, …]`` with 0 for the pairs (client, model) that are not to be used."""
    keep = pairs if t.shape[1] == pairs.shape[1] else pairs.any(1, keepdim=True)
    return torch.where(keep.reshape(*keep.shape, *[1] * (t.ndim - 2)), t, torch.zeros_like(t))
