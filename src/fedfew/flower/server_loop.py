"""The server's loop over rounds: which clients are asked, how long the server waits, what is done with the replies.

A round is one exchange of messages: models out; updates, losses and (where the round is scored) the scores of the trained
models back. It ends when all clients asked have replied or the deadline has passed, and counts if a quorum has replied;
aggregation weights are over the clients that replied. Scoring the aggregated models is a second exchange, every
``score-every`` rounds and after the last round, when each site also chooses and saves the model that it will use.

Only a completed round changes the state, and the state is what a checkpoint holds: a server that is killed loses only the round
that is running (where ``checkpoint-every`` is 1).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedfew import random_streams
from fedfew.flower.checks import CheckedReply, Request
from fedfew.flower.deployment_config import DeploymentConfig
from fedfew.flower.dispatcher import Dispatcher, Network
from fedfew.flower.exchanges import Exchanges, missing, put_score
from fedfew.flower.messages import TRAIN
from fedfew.flower.registry import Registry
from fedfew.flower.server_state import MakeFactory, ServerState, in_folder
from fedfew.stack import count_bytes
from fedfew.tasks import recorded_task
from fedfew.training import privacy, round_record
from fedfew.training.aggregation import Aggregation
from fedfew.training.errors import DivergedError
from fedfew.training.run import Run
from fedfew.training.server_step import ServerStep
from fedfew.util.spelling import counted
from fedfew.util.spelling import number as spelled

if TYPE_CHECKING:
    from fedfew.flower.masked_round import MaskedRound

log = logging.getLogger("flwr.fedfew")  # below Flower's logger, so that `flwr run --stream` shows it


class TooFewError(RuntimeError):
    """Too few sites reply; the state after the last complete round is kept."""


class ServerLoop:
    """The server of one run."""

    def __init__(
        self,
        config: DeploymentConfig,
        network: Network,
        make_factory: MakeFactory,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.registry = Registry(config.clients, config.max_samples, config.site_names)
        self.dispatcher = Dispatcher(network, self.registry, config.deadline, self._log_event, clock)
        self._make_factory = make_factory
        self._clock = clock
        self._early_events: list[str] = []  # events before there is a state to record them in
        self.server_state: ServerState | None = None

    def run(self) -> Run:
        """Train to the last round, from the newest checkpoint in the folder if there is one."""
        self.begin()
        return self.train()

    def begin(self) -> None:
        """Read the newest checkpoint, if there is one, wait for the sites, and initialise the state."""
        found = in_folder(self.config)  # first: a folder that is refused should not take the time of waiting
        members = [self.registry.members[node] for node in self._wait_for_sites().values()]
        state = ServerState(self.config, found, members, self._make_factory)
        self.server_state = state
        state.state.events += self._early_events
        self.dispatcher.admit_only(state.check_fits)
        for event in state.events:
            self._log_event(event)
        for note in state.notes:  # a server that resumes prints them again, but the run has them once
            log.warning(note) if note in state.state.events else self._log_event(note)
        if not self.config.sites and self.dispatcher.network.registered_names():
            log.warning("sites is not set: any registered site can take the place of any client (sites='north,south' binds them)")
        if self.config.aggregation == "masked":
            log.warning("aggregation = 'masked' is experimental: docs/private-aggregation.md says what it hides and what not")

    def train(self) -> Run:
        """Run the remaining rounds."""
        if self._state.state.round == self.config.rounds:  # a server that was stopped while sites scored the last round
            self._exchanges.score(self.config.rounds)
            self._write()
        try:
            while self._state.state.round < self.config.rounds:
                self._round(self._state.state.round + 1)
        except (TooFewError, DivergedError):  # raised before a round has changed anything
            self._write()
            raise
        return self._state.result()

    def _wait_for_sites(self) -> dict[int, int]:
        """Wait for all sites; after ``gather`` seconds a quorum is enough. Returns node by client."""
        begin = self._clock()
        needed = self._quorum(self.config.clients)
        while len(present := self.dispatcher.present()) < self.config.clients:
            waited = self._clock() - begin
            if waited >= self.config.gather and len(present) >= needed:
                break
            if waited >= self.config.gather + self.config.deadline:
                raise TooFewError(
                    f"{len(present)} of {self.config.clients} clients have joined in {waited:.0f} seconds, but the quorum is "
                    f"{needed} (quorum is {self.config.quorum:g}): missing {missing(self.config.clients, present)}"
                )
            self.dispatcher.pause(waited)
        if len(present) < self.config.clients:
            self._log_event(f"started without {missing(self.config.clients, present)}")
        return present

    # -- a round -------------------------------------------------------------------------------------------------------------

    def _round(self, number: int) -> None:
        state, config = self._state.state, self.config
        scored = config.scores(number)
        begin = self._clock()
        aggregation, sampled = self._train_with_quorum(number, scored)
        if aggregation is None:
            self._skip(number, len(sampled))
            return
        step = aggregation.result()
        if step is None:
            raise DivergedError(
                f"training diverged in round {number}: the server's models are not finite any more. Lower lr (it is "
                f"{config.lr:g}; try {config.lr / 10:g}) or set clip-norm. The state after round {state.round} is kept.",
                self._state.result(),
            )
        seconds = self._clock() - begin
        for event in aggregation.events(number):
            self._log_event(event)
        self._state.complete(number, step, len(sampled), aggregation.replies.answered.tolist())
        if config.aggregation == "masked" or config.dp_noise:
            # at once, whatever checkpoint-every is: sites do not reveal their shares of a round twice, and a round repeated with
            # other noise after its models were sent to sites would be one that ε does not count
            self._write()
        if scored:
            round_record.record(aggregation, state, self._exchanges.score(number), seconds)
            for event in aggregation.events_of_scores(number):
                self._log_event(event)
        if number % config.checkpoint_every == 0 or number == config.rounds:
            self._write()
        self._log_round(number, aggregation, seconds, scored)

    def _skip(self, number: int, sampled: int) -> None:
        """Leave out a round whose shares sites have revealed to a server that was stopped before it wrote a checkpoint."""
        self._log_event(f"round {number}: sites have revealed their shares of it, and do so once: the models stay as they are")
        self._state.complete(number, ServerStep.none(self._state.state), sampled, [])
        if number == self.config.rounds:
            self._exchanges.score(number)
        self._write()

    def _train_with_quorum(self, number: int, scored: bool) -> tuple[Aggregation | None, Tensor]:
        """Repeat a round's training until a quorum has replied; the aggregated replies, and the clients sampled. None: the round
        must be left out."""
        for attempt in range(1, self.config.attempts + 1):
            sampled, nodes = self._sample_clients(number)
            if sampled is not None and len(sampled) == 0:  # with differential privacy: noise alone
                return self._aggregate({}, torch.zeros(self.config.clients), scored, 0, None, 0), sampled
            if sampled is not None:
                masked = self._masked_round(number, nodes)
                replies, sample_shares, bytes_down = self._exchanges.train(number, scored, sampled, nodes, masked)
                needed = self._quorum(len(sampled) if self.config.dp_noise else self.config.clients_per_round)
                usable = len(replies)
                if usable >= needed:
                    aggregation = self._aggregate(replies, sample_shares, scored, bytes_down, masked, needed)
                    usable = len(aggregation.replies)  # masked: some may have dropped out since
                    if usable >= needed:
                        return aggregation, sampled
                self._log_event(
                    f"round {number}: {usable} of {len(sampled)} clients asked gave a usable reply, {needed} are needed"
                )
                if masked and masked.already_revealed:
                    return None, sampled
            if attempt < self.config.attempts:
                self._log_event(f"round {number}: repeated (attempt {attempt + 1} of {self.config.attempts})")
        raise TooFewError(
            f"round {number} has no quorum after {self.config.attempts} attempts (quorum is {self.config.quorum:g}). The state "
            f"after round {number - 1} is kept: run the app again with the same folder to continue."
        )

    def _sample_clients(self, number: int) -> tuple[Tensor | None, dict[int, int]]:
        """The clients of a round, sampled from those present, and their nodes; waits for enough of them until the deadline. None:
        too few are present."""
        begin, drawn = self._clock(), self.config.clients_per_round
        needed = self._quorum(drawn)
        while True:
            nodes = self.dispatcher.present()
            waited = self._clock() - begin
            if len(nodes) >= needed or waited >= self.config.deadline:
                break
            self.dispatcher.pause(waited)
        for client in self.dispatcher.busy():
            self._log_event(f"round {number}: client {client} is not asked: it has not answered an earlier message yet")
        present = torch.tensor(list(nodes), dtype=torch.int64)
        if len(present) < needed:
            self._log_event(f"round {number}: {len(present)} clients are present, {needed} are needed")
            return None, nodes
        if self.config.dp_noise:
            return present[privacy.secretly_drawn(len(present), self.config.participation)], nodes
        return present[random_streams.participants(self.config.seed, number, present, drawn / len(present))], nodes

    def _masked_round(self, number: int, nodes: dict[int, int]) -> MaskedRound | None:
        """The masked aggregation of this attempt; None where the aggregation is plain."""
        if self.config.aggregation == "plain":
            return None
        from fedfew.flower.masked_round import MaskedRound  # imports cryptography

        request = Request(0, self._state.token, number, TRAIN, 0)
        return MaskedRound(self._state.like, request, self.config.mask_clip, nodes, self.dispatcher, self._log_event)

    def _aggregate(
        self,
        replies: dict[int, CheckedReply],
        sample_shares: Tensor,
        scored: bool,
        bytes_down: int,
        masked: MaskedRound | None,
        quorum: int,
    ) -> Aggregation:
        """The replies aggregated in the order of clients; masked, after further exchanges, which may leave no client."""
        state = self._state.state
        noise = privacy.secret_noise if self.config.dp_noise else None
        aggregation = Aggregation(self._state.method, state, sample_shares, self._state.optimizer, noise)
        if masked:
            masked.finish(aggregation, replies, quorum)
            replies = {client: replies[client] for client in aggregation.replies.answered.tolist()}
        for client, reply in replies.items():
            if not masked:
                aggregation.add(torch.tensor([client]), reply.reply)
            if scored:
                put_score(aggregation.replies.adapted, client, reply.score)
        aggregation.replies.bytes_down = bytes_down + (masked.bytes_down if masked else 0)
        losses = sum(count_bytes(reply.reply.all_losses) for reply in replies.values())
        updates = sum(reply.message.bytes for reply in replies.values()) + (masked.bytes_up if masked else 0)
        aggregation.replies.bytes_up = losses + updates
        return aggregation

    # -- parts ---------------------------------------------------------------------------------------------------------------

    def _quorum(self, clients: int) -> int:
        """How many of so many clients are a quorum."""
        return max(1, math.ceil(round(self.config.quorum * clients, 9)))  # 0.55 · 20 is a little more than 11 in floating point

    @property
    def _exchanges(self) -> Exchanges:
        return Exchanges(self.config, self._state, self.registry, self.dispatcher, self._log_event)

    @property
    def _state(self) -> ServerState:
        assert self.server_state is not None, "begin() comes first"
        return self.server_state

    def _log_event(self, event: str) -> None:
        """Log an event and record it in the run's state."""
        log.warning(event)
        (self._early_events if self.server_state is None else self.server_state.state.events).append(event)

    def _log_round(self, number: int, aggregation: Aggregation, seconds: float, scored: bool) -> None:
        replied = counted(len(aggregation.replies), "client")
        line = f"round {number} of {self.config.rounds}: {replied}, loss {aggregation.loss:.4f}, {seconds:.1f} s"
        if scored:
            served = self._state.state.history.last_scores("served")
            known = served[served == served]
            score = recorded_task(self._state.state.settings).score
            line += f", served {spelled(100 * known.mean(), '.1f')} % ({score})" if len(known) else ""
        log.info(line)

    def _write(self) -> None:
        self._state.write(self.registry.members.values())
