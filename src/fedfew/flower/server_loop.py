"""The course of a run over a network: who is asked, how long the server waits, what becomes of the answers.

A round is one wave of letters: models out; updates, losses and (where the round is scored) the scores of the trained models
back. It ends when all who were asked have answered or the deadline has passed, and counts where a quorum has; weights are over
those who answered. Scoring the models served afterwards is a second wave, every ``score-every`` rounds and after the last, when
each site also chooses and keeps the model that it will use.

Only a completed round changes the state, and the state is what a checkpoint holds: a server that is killed loses the round that
is under way, and no other (where ``checkpoint-every`` is 1).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedfew import random_streams
from fedfew.flower import checks, wire
from fedfew.flower.checks import Answer, Asked
from fedfew.flower.dispatcher import Network, Post
from fedfew.flower.messages import SCORE, TRAIN, Letter, RefusedError
from fedfew.flower.plan import Plan
from fedfew.flower.registry import Member, Roster
from fedfew.flower.server_state import Factory, Standing
from fedfew.stack import tree_map
from fedfew.training.aggregation import Aggregation, PerClient
from fedfew.training.loop import DivergedError
from fedfew.training.run import Run

if TYPE_CHECKING:
    from fedfew.flower.masked_server import MaskedRound

log = logging.getLogger("flwr.fedfew")  # Flower's logger prints it and sends it to whoever follows the run


class TooFewError(RuntimeError):
    """Too few sites answer; the state after the last complete round is kept."""


class Course:
    """A run under way on a network."""

    def __init__(
        self,
        plan: Plan,
        network: Network,
        factory: Factory,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan = plan
        self.roster = Roster(plan.clients, plan.max_samples)
        self.post = Post(network, self.roster, plan.deadline, self._note, clock)
        self._factory = factory
        self._clock = clock
        self._early: list[str] = []  # what happened before there was a state to note it in
        self.standing: Standing | None = None

    def run(self) -> Run:
        """Begin, or go on from the newest checkpoint in the folder, to the last round."""
        self.begin()
        return self.go_on()

    def begin(self) -> None:
        """Wait for the sites, and make the first state or read the newest checkpoint's."""
        self._gather()
        standing = Standing(self.plan, [self._member(node) for node in self.post.present().values()], self._factory)
        self.standing = standing
        standing.state.events += self._early
        self.post.admit_only(standing.check_fits)
        for event in standing.events:
            self._note(event)
        if self.plan.aggregation == "masked":
            log.warning("aggregation = 'masked' is experimental: read docs/private-aggregation.md on what it hides and what not")

    def go_on(self) -> Run:
        """From the state there is to the last round."""
        try:
            while self._run.state.round < self.plan.rounds:
                self._round(self._run.state.round + 1)
        except (TooFewError, DivergedError):  # raised before a round has changed anything
            self._write()
            raise
        return self._run.result()

    # -- beginning -----------------------------------------------------------------------------------------------------------

    def _gather(self) -> None:
        """Wait for all sites; after a while begin without the missing, if there are enough."""
        begin = self._clock()
        while len(present := self.post.present()) < self.plan.clients:
            waited = self._clock() - begin
            if waited >= self.plan.gather and len(present) >= self._needed(self.plan.clients):
                break
            if waited >= self.plan.gather + self.plan.deadline:
                raise TooFewError(
                    f"{len(present)} of {self.plan.clients} clients have joined in {waited:.0f} seconds, but the quorum is "
                    f"{self._needed(self.plan.clients)} (quorum is {self.plan.quorum:g}): {self._missing(list(present))}"
                )
            self.post.pause(waited)
        if len(present) < self.plan.clients:
            self._note(f"begun without {self._missing(list(present))}")

    # -- a round -------------------------------------------------------------------------------------------------------------

    def _round(self, number: int) -> None:
        state, plan = self._run.state, self.plan
        scored = number % plan.score_every == 0 or number == plan.rounds
        begin = self._clock()
        collected, drawn = self._trained(number, scored)
        server = collected.result()
        if server is None:
            raise DivergedError(
                f"training diverged in round {number}: the server's models are not finite any more. Lower lr (it is {plan.lr:g}; "
                f"try {plan.lr / 10:g}) or set clip-norm. The state after round {state.round} is kept.",
                self._run.result(),
            )
        seconds = self._clock() - begin
        self._run.complete(number, server, len(drawn), collected.answered.tolist())
        if scored:
            served = self._served(number)
            collected.record(state, served, seconds)
        if number % plan.checkpoint_every == 0 or number == plan.rounds:
            self._write()
        self._tell(number, collected, seconds, scored)

    def _trained(self, number: int, scored: bool) -> tuple[Aggregation, Tensor]:
        """Ask for a round until a quorum has answered; what the clients drawn sent, put together."""
        for attempt in range(1, self.plan.attempts + 1):
            drawn, nodes = self._drawn(number)
            if len(drawn):
                masks = self._masks(number, nodes)
                answers, share, bytes_down = self._ask(number, scored, drawn, nodes, masks)
                needed = self._needed(round(self.plan.participation * self.plan.clients))
                usable = len(answers)
                if usable >= needed:
                    collected = self._combined(answers, share, scored, bytes_down, masks)
                    usable = len(collected.answered)  # under masks not all may be left
                    if usable >= needed:
                        return collected, drawn
                self._note(f"round {number}: {usable} of {len(drawn)} clients asked gave a usable answer, {needed} are needed")
            if attempt < self.plan.attempts:
                self._note(f"round {number}: asked for again ({attempt + 1} of {self.plan.attempts})")
        raise TooFewError(
            f"round {number} has no quorum after {self.plan.attempts} attempts (quorum is {self.plan.quorum:g}). The state after "
            f"round {number - 1} is kept: run the app again with the same folder to go on."
        )

    def _drawn(self, number: int) -> tuple[Tensor, dict[int, int]]:
        """The clients of a round, drawn from those who are there; waits for enough of them until the deadline."""
        begin = self._clock()
        while True:
            nodes = self.post.present()
            waited = self._clock() - begin
            if len(nodes) >= self._needed(self.plan.clients) or waited >= self.plan.deadline:
                break
            self.post.pause(waited)
        for client in self.post.busy():
            self._note(f"round {number}: client {client} is not asked: it has not answered an earlier letter yet")
        there = torch.tensor(list(nodes), dtype=torch.int64)
        if len(there) < self._needed(self.plan.clients):
            self._note(f"round {number}: {len(there)} clients are there, {self._needed(self.plan.clients)} are needed")
            return there[:0], nodes
        return there[random_streams.participants(self.plan.seed, number, there, self.plan.participation)], nodes

    def _ask(
        self, number: int, scored: bool, drawn: Tensor, nodes: dict[int, int], masks: MaskedRound | None
    ) -> tuple[dict[int, Answer], Tensor, int]:
        """One wave: the usable answers by client, the share each client was told, and the bytes sent out."""
        counts = torch.tensor([self._member(nodes[i]).samples for i in drawn.tolist()])
        share = torch.zeros(self.plan.clients)
        share[drawn] = counts / counts.sum()
        letters, asked = {}, {}
        for client, tree in self._run.dispatched(drawn).items():
            values = self._run.values(client, number) | {"share": float(share[client]), "scored": scored}
            values |= masks.opening() if masks else {}
            letters[nodes[client]] = Letter(TRAIN, values, tree)
            asked[nodes[client]] = Asked(client, self._run.token, number, TRAIN, self._member(nodes[client]).samples)
        like = replace(self._run.like, update={}) if masks else self._run.like  # under masks updates come later
        expected = wire.expected(tree_map(lambda t: t[0], like.update), self.plan.compression)
        came = self.post.wave(letters, expected)
        answers: dict[int, Answer] = {}
        for node, what in asked.items():
            try:
                letter = came.get(node, RefusedError("no answer within the deadline"))
                if isinstance(letter, RefusedError):
                    raise letter
                answer = checks.check_reply(letter, what, like, self.plan.compression)
                answers[what.client] = answer
                if (began := answer.began) != self._run.sites["last"][what.client]:
                    self._note(
                        f"round {number}: client {what.client} had lost its own state and began from that of round {began}"
                    )
            except RefusedError as reason:
                self._note(f"round {number}: client {what.client} is left out: {reason}")
        for client, why in checks.absurd(answers, self.plan.refuse_ratio).items():
            self._note(f"round {number}: client {client} is left out: {why}")
            del answers[client]
        for client, answer in answers.items():
            before = answer.norm
            if checks.clip(answer, self.plan.clip_norm):
                self._note(f"round {number}: client {client}'s update is shortened from {before:.3g} to {self.plan.clip_norm:g}")
        return dict(sorted(answers.items())), share, sum(letter.bytes for letter in letters.values())

    def _masks(self, number: int, nodes: dict[int, int]) -> MaskedRound | None:
        """What hides this attempt's updates; None where the aggregation is plain."""
        if self.plan.aggregation == "plain":
            return None
        from fedfew.flower.masked_server import MaskedRound  # brings in cryptography

        return MaskedRound(
            self._run.like, Asked(0, self._run.token, number, TRAIN, 0), self.plan.mask_clip, nodes, self.post, self._note
        )

    def _combined(
        self, answers: dict[int, Answer], share: Tensor, scored: bool, bytes_down: int, masks: MaskedRound | None
    ) -> Aggregation:
        """The answers put together, in the order of clients; under masks after further waves, which may leave nobody."""
        collected = Aggregation(self._run.method, self._run.state.server, share)
        if masks:
            masks.finish(collected, answers)
            answers = {client: answers[client] for client in collected.answered.tolist()}
        for client, answer in answers.items():
            if not masks:
                collected.add(torch.tensor([client]), answer.reply)
            if scored:
                _put_score(collected.adapted, client, answer.score)
        collected.bytes_down = bytes_down + (masks.bytes_down if masks else 0)
        losses = sum(answer.reply.losses.numel() * answer.reply.losses.element_size() for answer in answers.values())
        collected.bytes_up = losses + sum(answer.letter.bytes for answer in answers.values()) + (masks.bytes_up if masks else 0)
        return collected

    def _served(self, number: int) -> PerClient:
        """A wave to everyone who is there: which of the models served now each would use, and how well it does."""
        scores, nodes = PerClient(self.plan.clients), self.post.present()
        letters = {}
        final = number == self.plan.rounds
        for client, tree in self._run.dispatched(torch.tensor(list(nodes), dtype=torch.int64)).items():
            letters[nodes[client]] = Letter(SCORE, self._run.values(client, number) | {"final": final}, tree)
        came = self.post.wave(letters, {})
        for client, node in nodes.items():
            try:
                letter = came.get(node, RefusedError("no answer within the deadline"))
                if isinstance(letter, RefusedError):
                    raise letter
                checks.check_answer(letter, Asked(client, self._run.token, number, SCORE, 0))
                _put_score(scores, client, checks.check_score(letter))
            except RefusedError as reason:
                self._note(f"round {number}: client {client} is not scored: {reason}")
        return scores

    # -- parts ---------------------------------------------------------------------------------------------------------------

    def _needed(self, clients: int) -> int:
        """How many of so many clients are a quorum."""
        return max(1, -int(-self.plan.quorum * clients // 1))

    def _missing(self, present: list[int]) -> str:
        missing = [i for i in range(self.plan.clients) if i not in present]
        names = ", ".join(map(str, missing[:10])) + (", …" if len(missing) > 10 else "")
        return f"clients {names}" if len(missing) > 1 else f"client {names}"

    def _member(self, node: int) -> Member:
        return self.roster.members[node]

    @property
    def _run(self) -> Standing:
        assert self.standing is not None, "the run has not begun"
        return self.standing

    def _note(self, event: str) -> None:
        """An event worth a line: in the log, and in the run's history."""
        log.warning(event)
        (self._early if self.standing is None else self.standing.state.events).append(event)

    def _tell(self, number: int, collected: Aggregation, seconds: float, scored: bool) -> None:
        line = (
            f"round {number} of {self.plan.rounds}: {len(collected.answered)} clients, loss {collected.loss:.4f}, {seconds:.1f} s"
        )
        if scored:
            served = self._run.state.history.last("served_accuracy")
            known = served[served == served]
            line += f", served {100 * known.mean():.1f} %" if len(known) else ""
        log.info(line)

    def _write(self) -> None:
        self._run.write(self.roster.members.values())


def _put_score(scores: PerClient, client: int, score: tuple[int, float, float] | None) -> None:
    if score is not None:
        choice, accuracy, loss = (torch.tensor([value]) for value in score)
        scores.put(torch.tensor([client]), (choice, accuracy, loss))
