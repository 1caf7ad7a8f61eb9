"""A site's reply, checked before it is used: what is wrong refuses that reply alone."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fedfew.flower import wire
from fedfew.flower.messages import FAILED, Letter, RefusedError, check_tree, specs
from fedfew.flower.site_errors import WORDS
from fedfew.methods import Reply
from fedfew.methods.compression import Way
from fedfew.stack import Tree, leaves, tree_map


@dataclass(frozen=True)
class Asked:
    """What a client was asked for: an answer must be to this."""

    client: int
    run: str
    round: int
    kind: str
    samples: int


@dataclass
class Answer:
    """A checked answer of one client."""

    asked: Asked
    letter: Letter
    reply: Reply
    norm: float
    began: int  # after which of its rounds the client's own state was that it began from
    score: tuple[int, float, float] | None  # choice, accuracy and loss after training, where asked for and shared


def check_answer(letter: Letter, asked: Asked) -> None:
    """Is this an answer to what was asked?"""
    if letter.kind == FAILED:
        why = letter.values.get("why")
        raise RefusedError(f"the site failed: {why}" if why in WORDS else "the site failed")
    if letter.kind != asked.kind:
        raise RefusedError("it answers something else")
    if letter.whole("client") != asked.client or letter.text("run") != asked.run or letter.whole("round") != asked.round:
        raise RefusedError("it is another client's, run's or round's")


def check_reply(letter: Letter, asked: Asked, like: Reply, how: Way) -> Answer:
    """The update and losses in an answer; ``like`` is a reply with the right names, shapes and types."""
    check_answer(letter, asked)
    if letter.whole("samples", 1) != asked.samples:
        raise RefusedError("it was trained on another number of samples than the site joined with")
    losses = torch.tensor([letter.numbers("losses", like.losses.shape[1])], dtype=like.losses.dtype)
    expected = tree_map(lambda t: t[0], like.update)
    check_tree(letter.tree, wire.expected(expected, how))
    update = wire.incoming(letter.tree, expected, how)
    check_tree(update, specs(expected))
    stacked = tree_map(lambda t: t[None], update)
    reply = Reply(stacked, losses, torch.tensor([asked.samples]))
    return Answer(asked, letter, reply, norm(update), letter.whole("began"), check_score(letter))


def check_score(letter: Letter) -> tuple[int, float, float] | None:
    """Choice, accuracy and loss; None where the site keeps them to itself."""
    if "accuracy" not in letter.values:
        return None
    choice, accuracy, loss = letter.whole("choice", 0, 1000), letter.number("accuracy"), letter.number("loss")
    if not 0 <= accuracy <= 1 or loss < 0:
        raise RefusedError("its scores are out of bounds")
    return choice, accuracy, loss


def norm(update: Tree) -> float:
    """‖update‖ over all its floating-point tensors."""
    return sum(float(t.double().square().sum()) for t in leaves(update) if t.is_floating_point()) ** 0.5


def absurd(answers: Mapping[int, Answer], ratio: float) -> dict[int, str]:
    """Clients whose update is so many times longer than the round's median that it is not believed, and why."""
    if ratio == 0 or len(answers) < 3:
        return {}
    median = statistics.median_low(answer.norm for answer in answers.values())
    return {
        client: f"its update is {answer.norm / median:.3g} times as long as the round's median"
        for client, answer in answers.items()
        if median > 0 and answer.norm > ratio * median
    }


def clip(answer: Answer, longest: float) -> bool:
    """Shorten an update to a norm; was there anything to shorten?"""
    if longest == 0 or answer.norm <= longest:
        return False
    scale = longest / answer.norm
    answer.reply.update = tree_map(lambda t: t * scale if t.is_floating_point() else t, answer.reply.update)
    answer.norm = longest
    return True
