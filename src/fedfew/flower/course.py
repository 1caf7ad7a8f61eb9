"""The course of a run over a network: who is asked, how long the server waits, what becomes of the answers.

A round is one wave of letters: models out; updates, losses and (where the round is scored) the scores of the trained models
back. It ends when all who were asked have answered or the deadline has passed, and counts where a quorum has; weights are over
those who answered. Scoring the models served afterwards is a second wave, every ``score-every`` rounds and after the last, when
each site also chooses and keeps the model that it will use.

Only a completed round changes the state, and the state is what a checkpoint holds: a server that is killed loses the round that
is under way, and no other (where ``checkpoint-every`` is 1).
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedfew import checkpoint, counted, normalisation
from fedfew._version import __version__
from fedfew.aggregation import Aggregation, PerClient
from fedfew.checkpoint import State
from fedfew.costs import rehearsed
from fedfew.flower import checks, wire
from fedfew.flower.checks import Answer, Asked
from fedfew.flower.letters import SCORE, TRAIN, Letter, RefusedError
from fedfew.flower.masked_server import MaskedRound
from fedfew.flower.plan import Plan
from fedfew.flower.post import Network, Post
from fedfew.flower.roster import Member, Roster, agreed
from fedfew.history import History
from fedfew.rounds import DivergedError
from fedfew.run import ModelFactory, Run
from fedfew.stack import Tree, leaves, take, tree_map
from fedfew.training import fresh_models

log = logging.getLogger("flwr.fedfew")  # Flower's logger prints it and sends it to whoever follows the run

Factory = Callable[[dict[str, Any]], ModelFactory]  # from what the sites' data have in common


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
        self.folder = Path(plan.folder)
        self.roster = Roster(plan.clients, plan.max_samples)
        self.post = Post(network, self.roster, plan.deadline, self._note, clock)
        self._make_factory = factory
        self._clock = clock
        self._early: list[str] = []  # what happened before there was a state to note it in
        self.state: State | None = None

    def run(self) -> Run:
        """Begin, or go on from the newest checkpoint in the folder, to the last round."""
        self.begin()
        return self.go_on()

    def begin(self) -> None:
        """Wait for the sites, and make the first state or read the newest checkpoint's."""
        self._gather()
        self.state = self._begin()
        self.post.admit = self._fits
        self.state.events += self._early

    def go_on(self) -> Run:
        """From the state there is to the last round."""
        try:
            while self._state.round < self.plan.rounds:
                self._round(self._state.round + 1)
        except (TooFewError, DivergedError):  # raised before a round has changed anything
            self._write()
            raise
        return self._result()

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

    def _begin(self) -> State:
        """A fresh state, or the one in the newest checkpoint."""
        plan = self.plan
        found = checkpoint.checkpoints(self.folder)
        if found:
            state, refused = checkpoint.read_newest(self.folder, self._comparable())
            if state.round >= plan.rounds:
                raise ValueError(
                    f"rounds is {plan.rounds}, but the run in {self.folder} has done {state.round}: choose more, or another"
                    " folder"
                )
            self._early += [f"refused: {reason}" for reason in refused]
            self._early.append(f"resumed after round {state.round}")
            data = state.settings["federation"]
        else:
            data = agreed([self.roster.members[node] for node in self.post.present().values()])
            state = State(0, {}, {}, History(), {})
            state.sites = {"run": uuid.uuid4().hex, "last": [0] * plan.clients, "keep": [0] * plan.clients}
            state.sites |= {"samples": [0] * plan.clients, "test_samples": [0] * plan.clients}
        self.method, self.factory = plan.make_method(), self._make_factory(data)
        self.factory, self.method = normalisation.with_policy(plan.batch_norm, self.factory, self.method)
        server, own = self.method.init(fresh_models(self.factory, plan.seed, torch.device("cpu")), plan.clients)
        self.like = rehearsed(self.method, self.factory(), server, own)
        if not found:
            state.server = server
        about = {"name": data["name"], "clients": plan.clients} | {
            n: data[n] for n in ("classes", "shape", "vocabulary", "pixels")
        }
        more = {"rounds": plan.rounds, "engine": "flower", "fedfew": __version__, "torch": torch.__version__}
        state.settings = self._comparable() | {"federation": about | {"test_samples": state.sites["test_samples"]}} | more
        self._copy_of_last = list(state.sites["last"])
        if plan.aggregation == "masked":
            log.warning("aggregation = 'masked' is experimental: read docs/private-aggregation.md on what it hides and what not")
        return state

    def _comparable(self) -> dict[str, Any]:
        """The settings that a checkpoint must have been made with."""
        names = (
            "model",
            "local_epochs",
            "batch_size",
            "lr",
            "momentum",
            "weight_decay",
            "participation",
            "batch_norm",
            "augment",
        )
        values = {name: getattr(self.plan, name) for name in (*names, "seed", "score_every")}
        return {"method": self.plan.make_method().settings()} | values

    def _fits(self, member: Member) -> None:
        """Refuse a site whose data do not fit the run's."""
        data = self._state.settings["federation"]
        for what in ("shape", "vocabulary", "pixels"):
            mine = getattr(member, what)
            if (list(mine) if what == "shape" else mine or None) != data[what]:
                raise RefusedError(f"{what} of its data is {mine}, the run's is {data[what]}")
        if member.classes > data["classes"]:
            raise RefusedError(f"it has {member.classes} classes, the run {data['classes']}")

    # -- a round -------------------------------------------------------------------------------------------------------------

    def _round(self, number: int) -> None:
        state, plan = self._state, self.plan
        scored = number % plan.score_every == 0 or number == plan.rounds
        begin = self._clock()
        collected, drawn = self._trained(number, scored)
        server = collected.result()
        if server is None:
            raise DivergedError(
                f"training diverged in round {number}: the server's models are not finite any more. Lower lr (it is {plan.lr:g}; "
                f"try {plan.lr / 10:g}) or set clip-norm. The state after round {state.round} is kept.",
                self._result(),
            )
        seconds = self._clock() - begin
        state.server, state.round = server, number
        for client in collected.answered.tolist():
            state.sites["last"][client] = number
        state.left_out += len(drawn) - len(collected.answered)
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
                if len(answers) >= min(needed, len(drawn)) and len(drawn) >= needed:
                    collected = self._combined(answers, share, scored, bytes_down, masks)
                    if len(collected.answered):
                        return collected, drawn
                else:
                    self._note(
                        f"round {number}: {len(answers)} of {len(drawn)} clients asked gave a usable answer, {needed} are needed"
                    )
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
        return there[counted.participants(self.plan.seed, number, there, self.plan.participation)], nodes

    def _ask(
        self, number: int, scored: bool, drawn: Tensor, nodes: dict[int, int], masks: MaskedRound | None
    ) -> tuple[dict[int, Answer], Tensor, int]:
        """One wave: the usable answers by client, the share each client was told, and the bytes sent out."""
        counts = torch.tensor([self._member(nodes[i]).samples for i in drawn.tolist()])
        share = torch.zeros(self.plan.clients)
        share[drawn] = counts / counts.sum()
        letters, asked = {}, {}
        for client, tree in self._dispatched(drawn).items():
            values = self._values(client, number) | {"share": float(share[client]), "scored": scored}
            values |= masks.opening() if masks else {}
            letters[nodes[client]] = Letter(TRAIN, values, tree)
            asked[nodes[client]] = Asked(client, self._token, number, TRAIN, self._member(nodes[client]).samples)
        like = replace(self.like, update={}) if masks else self.like  # under masks updates come later
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
                if (began := answer.began) != self._state.sites["last"][what.client]:
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
        return MaskedRound(self.like, Asked(0, self._token, number, TRAIN, 0), self.plan.mask_clip, nodes, self.post, self._note)

    def _combined(
        self, answers: dict[int, Answer], share: Tensor, scored: bool, bytes_down: int, masks: MaskedRound | None
    ) -> Aggregation:
        """The answers put together, in the order of clients; under masks after further waves, which may leave nobody."""
        collected = Aggregation(self.method, self._state.server, share)
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
        for client, tree in self._dispatched(torch.tensor(list(nodes), dtype=torch.int64)).items():
            letters[nodes[client]] = Letter(SCORE, self._values(client, number) | {"final": final}, tree)
        came = self.post.wave(letters, {})
        for client, node in nodes.items():
            try:
                letter = came.get(node, RefusedError("no answer within the deadline"))
                if isinstance(letter, RefusedError):
                    raise letter
                checks.check_answer(letter, Asked(client, self._token, number, SCORE, 0))
                _put_score(scores, client, checks.check_score(letter))
            except RefusedError as reason:
                self._note(f"round {number}: client {client} is not scored: {reason}")
        return scores

    # -- parts ---------------------------------------------------------------------------------------------------------------

    def _dispatched(self, clients: Tensor) -> dict[int, Tree]:
        """What each of the clients receives; one tree for all where all receive the same."""
        received = self.method.dispatch(self._state.server, clients)
        if not leaves(received) or leaves(received)[0].shape[0] == 1:
            same = take(received, 0)
            return dict.fromkeys(clients.tolist(), same)
        return {client: take(received, row) for row, client in enumerate(clients.tolist())}

    def _values(self, client: int, number: int) -> dict[str, Any]:
        state = self._state
        data = {name: state.settings["federation"][name] for name in ("shape", "classes", "vocabulary")}
        return {
            "run": self._token,
            "round": number,
            "last": state.sites["last"][client],
            "keep": state.sites["keep"][client],
            "settings": json.dumps(self.plan.for_sites() | data),
        }

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
    def _state(self) -> State:
        assert self.state is not None, "the run has not begun"
        return self.state

    @property
    def _token(self) -> str:
        token: str = self._state.sites["run"]
        return token

    def _note(self, event: str) -> None:
        """An event worth a line: in the log, and in the run's history."""
        log.warning(event)
        (self._early if self.state is None else self.state.events).append(event)

    def _tell(self, number: int, collected: Aggregation, seconds: float, scored: bool) -> None:
        line = (
            f"round {number} of {self.plan.rounds}: {len(collected.answered)} clients, loss {collected.loss:.4f}, {seconds:.1f} s"
        )
        if scored:
            served = self._state.history.last("served_accuracy")
            known = served[served == served]
            line += f", served {100 * known.mean():.1f} %" if len(known) else ""
        log.info(line)

    def _write(self) -> None:
        """A checkpoint; sites then need no state older than that of the checkpoint before it."""
        state = self._state
        for member in self.roster.members.values():
            state.sites["samples"][member.client] = member.samples
            state.sites["test_samples"][member.client] = member.test_samples
        state.sites["keep"], self._copy_of_last = self._copy_of_last, list(state.sites["last"])
        checkpoint.write(self.folder, state)
        about = {"train": state.sites["samples"], "test": state.sites["test_samples"]}
        about["pixels"] = state.settings["federation"]["pixels"]
        (self.folder / "federation.json").write_text(json.dumps(about))

    def _result(self) -> Run:
        return Run(self._state, self.factory, self.method)


def _put_score(scores: PerClient, client: int, score: tuple[int, float, float] | None) -> None:
    if score is not None:
        choice, accuracy, loss = (torch.tensor([value]) for value in score)
        scores.put(torch.tensor([client]), (choice, accuracy, loss))
