"""Checks of a site's reply before it is used. A reply that fails one is refused; other clients' replies are not affected."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fedfew.flower import wire
from fedfew.flower.messages import FAILED, ChangedError, RefusedError, RevealedError, SiteMessage, check_tree, specs
from fedfew.flower.site_errors import CATEGORIES
from fedfew.methods import Reply
from fedfew.methods.compression import Way
from fedfew.stack import Tree, leaves, tree_map


@dataclass(frozen=True)
class Request:
    """What a client was asked for: its reply must match this."""

    client: int
    run: str
    round: int
    kind: str
    samples: int


@dataclass
class CheckedReply:
    """The checked reply of one client."""

    request: Request
    message: SiteMessage
    reply: Reply
    norm: float
    started_from: int  # the round after which the client's private state was written that it started from
    score: tuple[int, float, float] | None  # choice, accuracy and loss after training, where asked for and reported


def check_matches(message: SiteMessage, request: Request) -> None:
    """Refuse a message that is not the reply to this request."""
    check_not_failed(message)
    if message.kind != request.kind:
        raise RefusedError(f"it does not answer a {request.kind} request")
    found = message.integer("client"), message.text("run"), message.integer("round")
    if found != (request.client, request.run, request.round):
        raise RefusedError("it names another client, run or round than it was asked for")


def check_not_failed(message: SiteMessage) -> None:
    if message.kind == FAILED:
        category = message.values.get("error")
        kind = RevealedError if category == "revealed" else RefusedError
        raise kind(f"the site failed: {category}" if category in CATEGORIES else "the site failed")


def check_reply(message: SiteMessage, request: Request, like: Reply, compression: Way, lowest: float) -> CheckedReply:
    """The update and losses in a reply; ``like`` is a reply with the right names, shapes and types. lowest: score."""
    check_matches(message, request)
    if message.integer("samples", 1) != request.samples:
        raise ChangedError("it was trained on another number of samples than the site joined with: it is asked to join again")
    values = message.numbers("losses", like.losses.shape[1], or_infinite=True)
    losses = torch.tensor([values], dtype=like.losses.dtype)
    usable = losses[0, [value < math.inf for value in values]]  # +inf: the site cannot use this model, and left it out
    if len(usable) == 0 or not bool(usable.isfinite().all()):  # a number may be finite in float64 and not in float32
        raise RefusedError("losses is not finite")
    expected = tree_map(lambda t: t[0], like.update)
    check_tree(message.tree, wire.expected(expected, compression))
    update = wire.incoming(message.tree, expected, compression)
    check_tree(update, specs(expected))
    stacked = tree_map(lambda t: t[None], update)
    unseen = None
    if "unseen" in message.values:
        unseen = torch.tensor([message.numbers("unseen", losses.shape[1])], dtype=losses.dtype)
    reply = Reply(stacked, losses, torch.tensor([request.samples]), unseen)
    score = check_score(message, losses.shape[1], lowest)
    return CheckedReply(request, message, reply, norm(update), message.integer("started_from"), score)


def check_score(message: SiteMessage, models: int, lowest: float) -> tuple[int, float, float] | None:
    """Choice among so many models, score (from lowest to 1; called accuracy in the message, whatever the task) and loss; None
    where the site does not report them. A score that there is not (R² of equal targets) is NaN. A loss may be infinite, and so
    may be a score of which there is no lowest: so they are where a model diverges on test samples."""
    if "loss" not in message.values:
        return None
    choice, scored = message.integer("choice", 0, models - 1), "accuracy" in message.values
    loss = message.number("loss", or_infinite=math.inf)
    accuracy = message.number("accuracy", or_infinite=lowest) if scored else math.nan
    if (scored and not lowest <= accuracy <= 1) or not (0 <= loss <= torch.finfo(torch.float32).max or loss == math.inf):
        raise RefusedError("its scores are out of bounds")
    return choice, accuracy, loss


def norm(update: Tree) -> float:
    """‖update‖ over all its floating-point tensors."""
    return sum(float(t.double().square().sum()) for t in leaves(update) if t.is_floating_point()) ** 0.5


def outliers(replies: Mapping[int, CheckedReply], ratio: float, sent: Mapping[int, Tree]) -> dict[int, str]:
    """Clients whose update is more than ``ratio`` times longer than the round's median, and longer than the models ``sent`` to
    them; and how much longer it is.

    The median alone is no scale where half of the clients hardly move, because their models fit their samples: it refused clients
    that learn as usual. An update no longer than the models it started from cannot make them huge.
    """
    if ratio == 0 or len(replies) < 3:
        return {}
    median = statistics.median_low(reply.norm for reply in replies.values())
    return {
        client: f"its update is {reply.norm / median:.3g} times as long as the round's median"
        for client, reply in replies.items()
        if median > 0 and reply.norm > ratio * median and reply.norm > norm(sent[client])
    }


def clip(reply: CheckedReply, max_norm: float) -> bool:
    """Shorten an update to ``max_norm`` (0: leave it); returns whether it was longer."""
    if max_norm == 0 or reply.norm <= max_norm:
        return False
    scale = max_norm / reply.norm
    reply.reply.update = tree_map(lambda t: t * scale if t.is_floating_point() else t, reply.reply.update)
    reply.norm = max_norm
    return True
