"""The round loop: dispatch, local work, aggregation, scoring, checkpoints."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from fedfew import random_streams
from fedfew.config import TrainConfig
from fedfew.engines import Engine
from fedfew.federation import Federation
from fedfew.local import Local
from fedfew.methods import Method
from fedfew.methods.base import Outcome, returned
from fedfew.models import ModelFactory
from fedfew.stack import Tree, bytes_each, everyone, put, take
from fedfew.training import own_metrics, privacy, round_events, round_record, validation
from fedfew.training.aggregation import Aggregation
from fedfew.training.checkpoint import State
from fedfew.training.checkpoint_writer import CheckpointWriter
from fedfew.training.distributed import Group, PeerError, stoppable, unstoppable
from fedfew.training.errors import DivergedError, Interrupted
from fedfew.training.on_round import OnRound, Progress, stop_asked
from fedfew.training.per_client import some
from fedfew.training.run import Run
from fedfew.training.server_optimizer import ServerOptimizer
from fedfew.training.serving import Adapted, Serving, chunks
from fedfew.training.task_settings import LARGE_TARGETS
from fedfew.training.usable import usable
from fedfew.util.interrupts import held_back, holdable

log = logging.getLogger("fedfew")  # for runs whose lines nobody is shown: no bar, no on_round
_tasks_told: set[tuple[str, str]] = set()  # names of federations, and the line about their task


@dataclass
class RoundLoop:
    """A run under way; its state changes only when a round is complete."""

    federation: Federation
    method: Method
    engine: Engine
    config: TrainConfig
    optimizer: ServerOptimizer
    chunk: int
    factory: ModelFactory
    state: State
    folder: Path | None
    on_round: Sequence[OnRound]
    group: Group = field(default_factory=Group)
    events: list[str] = field(default_factory=list)
    metrics: Mapping[str, own_metrics.Metric] = field(default_factory=dict)
    _seconds: list[float] = field(default_factory=list)
    _held_back: Callable[[], AbstractContextManager[None]] = field(init=False, default_factory=lambda: held_back)

    @cached_property
    def _serving(self) -> Serving:
        return Serving(self.federation, self.method, self.engine, self.config, self.chunk, self.group, self.metrics)

    @cached_property
    def _shares(self) -> Tensor:
        """Of each client in all samples; in float64, for weights are exp(share · loss / μ)."""
        counts = self.federation.train.sizes
        return counts.double() / counts.sum()

    @cached_property
    def _checkpoints(self) -> CheckpointWriter | None:
        return CheckpointWriter(self.folder) if self.folder is not None and self.group.first else None

    def run(self) -> Run:
        begin = time.perf_counter()
        rounds, score_every = self.config.rounds, self.config.score_every
        with self.engine.memory_kept(), stoppable(self.group), holdable() as self._held_back:
            try:
                stopped = validation.reason_to_stop(self.state.history, self.config) is not None  # before it was resumed
                while self.state.round < rounds and not stopped:
                    number = self.state.round + 1
                    scored = number % score_every == 0 or number == rounds
                    with self.engine.within_a_round():
                        loss = self._round(number, scored)
                    if scored and (why := validation.reason_to_stop(self.state.history, self.config)):
                        stopped = True
                        self._note(why)
                    if stopped or number == rounds or self._checkpoint_due(number):
                        self._write()
                    if self._report(loss, rounds, time.perf_counter() - begin, stopped):
                        self._write()
                        break
            except (KeyboardInterrupt, DivergedError, PeerError) as stopped:
                self._write_despite_signals()
                if isinstance(stopped, KeyboardInterrupt):
                    raise Interrupted(self._result()) from None
                raise
        return self._result()

    def _round(self, number: int, scored: bool) -> float:
        """One round, start to end; the state changes only when it is complete. Returns the mean loss reported."""
        begin = self.engine.clock()
        present, collected = self._begun(number)
        new, adapted, scoring = self._local_work(collected, present, number, scored)
        if self.group.size > 1:
            new = collected.join(self.group, new, self.federation.train.y.device)
        step = collected.result()
        if step is None:
            raise self._diverged(number)
        self._seconds.append(self.engine.clock() - begin - scoring)
        with self._own_replaced(new, number):
            if scored:
                self._finish()
            served = self._serving.scores(step.served, self.state.own, self.federation.test, adapted) if scored else None
            validated = None
            if scored and self.config.validates and self.federation.val is not None:
                validated = self._serving.scores(step.served, self.state.own, self.federation.val)
            with self._held_back():
                step.complete(self.state, number)
                self.state.choice, self.state.mixture = (None, None) if served is None else served.chosen
                self._note_left_out(number, present, collected)
                if scored:
                    self._note_diverged()
                for event in collected.events(number):
                    self._note(event)
                if served is not None:
                    round_record.record(collected, self.state, served, sum(self._seconds) / len(self._seconds), validated)
                    for event in collected.events_of_scores(number):
                        self._note(event)
                    self._seconds = []
                    if self.config.keep == "best" and self._is_best():
                        self.state.remember_as_best()
        return collected.loss

    def _begun(self, number: int) -> tuple[Tensor, Aggregation]:
        """The clients drawn for the round, and what collects their replies."""
        private = self.config.dp_noise > 0
        if self.config.participation >= 1 and not private:
            present, share = everyone(len(self.federation)), self._shares
        else:
            draw = privacy.drawn if private else random_streams.participants
            present = draw(self.engine.seed, number, self.federation.ids, self.config.participation)
            counts, share = self.federation.train.sizes, torch.zeros_like(self._shares)
            share[present] = counts[present].double() / counts[present].sum()
        noise = privacy.counted_noise(self.engine.seed, number) if private else None
        return present, Aggregation(self.method, self.state, share, self.optimizer, noise)

    def _local_work(
        self, collected: Aggregation, present: Tensor, number: int, scored: bool
    ) -> tuple[list[tuple[Tensor, Tree]], Adapted | None, float]:
        """Train this process's clients and collect their replies; returns their new private states, the models to be scored with
        those served, and seconds of scoring."""
        method, train = collected.method, self.federation.train
        new: list[tuple[Tensor, Tree]] = []
        adapted = None
        scoring = 0.0
        for clients in chunks(self.group.share(present, train.sizes[present]), self.chunk):
            received = method.dispatch(self.state.server, clients)
            share = collected.share[clients].to(train.y.device, non_blocking=True)
            local = Local(self.engine, train.take(clients), self.federation.ids[clients], number, share)
            outcome = returned(method, "client", method.client(received, self._own(clients), local), Outcome, "an Outcome")
            collected.replies.bytes_down += bytes_each(received) * len(clients)
            good, outcome = usable(outcome)
            clients = clients if len(good) == len(clients) else clients[good]
            if len(clients) == 0:
                continue
            if scored and method.finishes:
                own = method.finish(outcome.own, local.of(good, number))
                outcome = replace(outcome, own=own, adapted=method.serve(method.dispatch(self.state.server, clients), own))
            if scored and self._serving.everyone_at_once(clients):
                adapted = Adapted(outcome.adapted, outcome.mixture, collected.replies.adapted)
            elif scored:
                before = self.engine.clock()
                scores = self._serving.score(outcome.adapted, clients, self.federation.test, outcome.mixture)
                collected.replies.adapted.put(clients, scores)
                scoring += self.engine.clock() - before
            collected.add(clients, outcome.reply)
            new.append((clients, outcome.own))
            del outcome  # or this chunk's models would stay in memory until the next one's are trained
        return new, adapted, scoring

    def _own(self, clients: Tensor) -> Tree:
        return take(self.state.own, clients.to(self.federation.train.y.device))

    @contextmanager
    def _own_replaced(self, new: list[tuple[Tensor, Tree]], number: int) -> Iterator[None]:
        """The clients' private states replaced: for good if the round is completed within, else as they were."""
        old = [(clients, self._own(clients)) for clients, _ in new]
        try:
            for clients, own in new:
                put(self.state.own, clients, own)
            yield
        except BaseException:
            if self.state.round < number:  # a Ctrl-C held back until the round was complete does not undo it
                with self._held_back():
                    for clients, own in old:
                        put(self.state.own, clients, own)
            raise

    def _finish(self) -> None:
        """Have every client's private state finished, of which training leaves something undone until it is needed. A client's
        state becomes the same whenever that is done, so nothing is undone if the round fails."""
        if not self.method.finishes:
            return
        train = self.federation.train
        for clients in torch.arange(len(self.federation)).split(self.chunk):
            share = torch.zeros(len(clients), dtype=torch.float64, device=train.y.device)
            local = Local(self.engine, train.take(clients), self.federation.ids[clients], self.state.round, share)
            put(self.state.own, clients, self.method.finish(self._own(clients), local))

    def _is_best(self) -> bool:
        history = self.state.history
        return validation.best_row(history, self.config) == len(history) - 1

    def _note_choice(self) -> None:
        """Which of the models served now each client would use, if the last round was not scored."""
        if self.state.choice is None:
            self._finish()
            self._note_diverged()
            self.state.choice, self.state.mixture = self._serving.choices(self.state.served, self.state.own)

    def _note_left_out(self, number: int, present: Tensor, collected: Aggregation) -> None:
        if collected.nobody_drawn:
            return
        if len(collected.replies) < len(present):
            missing = present[~torch.isin(present, collected.replies.answered)].tolist()
            self.state.left_out += len(missing)
            self._note(f"round {number}: left out, their loss or update is not finite: clients {some(missing)}")

    def _note_diverged(self) -> None:
        for event in round_events.diverged(self.method.diverged(self.state.own), self.state.events):
            self._note(event)

    def _note(self, event: str) -> None:
        self.events.append(event)
        self.state.events.append(event)

    def _diverged(self, number: int) -> DivergedError:
        lr = self.config.lr
        unseen = "".join(
            f" {event}." for event in self.events if event.startswith(LARGE_TARGETS)
        )  # this round ends with no report
        return DivergedError(
            f"training diverged in round {number}: no client's loss and update are finite any more. Lower lr (it is {lr:g}; try "
            f"{lr / 10:g}). The state after round {self.state.round} is kept.{unseen}",
            self._result(),
        )

    def _report(self, loss: float, rounds: int, seconds: float, stopped: bool) -> bool:
        """Call on_round; whether the run is to end with this round because it asks for that."""
        events, self.events = self.events, []
        stop = False
        if self.on_round and self.group.first:
            stop = stop_asked(self.on_round, Progress.of(self.state, rounds, loss, seconds, events, stopped))
        elif self.group.first:  # nobody is shown them
            for event in events:
                log.log(self._level(event), event)
        return self.group.firsts(stop)

    def _level(self, event: str) -> int:
        """INFO for what nobody needs to see: the engine, and the task where another run of the same data logged it."""
        told = (self.federation.name, event)
        if event.startswith("engine: ") or told in _tasks_told:
            return logging.INFO
        if event.startswith("task: "):
            _tasks_told.add(told)
        return logging.WARNING

    def _write(self) -> None:
        checkpoints = self._checkpoints
        if checkpoints is not None and checkpoints.round != self.state.round:
            begin = time.perf_counter()
            self._note_choice()
            checkpoints.write(self.state, begin)

    def _checkpoint_due(self, number: int) -> bool:
        due = number % self.config.checkpoint_every == 0
        return due and self._checkpoints is not None and self._checkpoints.worth_writing()

    def _write_despite_signals(self) -> None:
        """Even if a signal comes between the error that ends the run and the moment from which signals are ignored."""
        try:
            with unstoppable(self.group):
                self._write()
        except KeyboardInterrupt:
            if self.group.size == 1:  # a second Ctrl-C
                raise
            with unstoppable(self.group):
                self._write()

    def _result(self) -> Run:
        self._note_choice()
        state = self.state
        return Run(state.on("cpu"), self.factory, self.method, self.engine.criterion)
