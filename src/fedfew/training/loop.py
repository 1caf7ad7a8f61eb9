"""The round loop: dispatch, local work, aggregation, scoring, checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfew import random_streams
from fedfew.config import TrainConfig
from fedfew.engines import Engine
from fedfew.federation import Federation, Samples
from fedfew.local import Local
from fedfew.methods import Method
from fedfew.models import ModelFactory
from fedfew.stack import Tree, bytes_each, put, take
from fedfew.training import checkpoint, own_metrics, privacy, validation
from fedfew.training.aggregation import Aggregation
from fedfew.training.attack import without_attackers
from fedfew.training.checkpoint import State
from fedfew.training.distributed import Group, PeerError, stoppable, unstoppable
from fedfew.training.history import History
from fedfew.training.per_client import PerClient, some
from fedfew.training.run import Run
from fedfew.training.scoring import ServedScores, choose, score
from fedfew.training.server_optimizer import ServerOptimizer
from fedfew.training.usable import usable
from fedfew.util.interrupts import held_back

PATIENCE = 10  # the next checkpoint: not before so many times the seconds have passed that the last one took


@dataclass(frozen=True)
class Progress:
    """What a run reports after every round."""

    round: int
    rounds: int
    loss: float  # mean over clients of the least loss they reported
    served: float | None  # mean test scores (accuracy, R², …) of the last scored round
    adapted: float | None
    seconds: float  # since this call of train began
    events: list[str]  # lines about what happened in this round
    history: History | None = None  # all scored rounds so far; the newest is this one if its ``round`` is
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the run
    stopped: bool = False  # early_stopping ends the run with this round

    @property
    def done(self) -> bool:
        return self.round == self.rounds or self.stopped


OnRound = Callable[[Progress], Any]  # called after a round; the run ends there if it returns "stop"


class DivergedError(RuntimeError):
    """No client's numbers are finite any more; ``run`` is the last good state."""

    def __init__(self, message: str, run: Run) -> None:
        super().__init__(message)
        self.run = run


class Interrupted(KeyboardInterrupt):
    """Stopped by Ctrl-C; ``run`` is the state after the last complete round."""

    def __init__(self, run: Run) -> None:
        super().__init__(f"stopped after round {run.round}")
        self.run = run


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
    _written: int = -1
    _writing: float = 0.0  # seconds that the last checkpoint took
    _since: float = 0.0  # when it was there
    _seconds: list[float] = field(default_factory=list)

    def run(self) -> Run:
        begin = time.perf_counter()
        rounds, score_every = self.config.rounds, self.config.score_every
        with stoppable(self.group):
            try:
                stopped = validation.reason_to_stop(self.state.history, self.config) is not None  # before it was resumed
                while self.state.round < rounds and not stopped:
                    number = self.state.round + 1
                    scored = number % score_every == 0 or number == rounds
                    loss = self._round(number, scored)
                    if scored and (why := validation.reason_to_stop(self.state.history, self.config)):
                        stopped = True
                        self._note(why)
                    if stopped or number == rounds or (number % self.config.checkpoint_every == 0 and self._worth_writing()):
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
        method, server, train = self.method.smoothed(self.config.smoothing_of(number)), self.state.server, self.federation.train
        private = self.config.dp_noise > 0
        draw = privacy.drawn if private else random_streams.participants
        present = draw(self.engine.seed, number, self.federation.ids, self.config.participation)
        counts = train.count.cpu()
        share = torch.zeros(len(self.federation), dtype=torch.float64)  # weights are exp(share · loss / μ): digits count
        share[present] = counts[present].double() / counts[present].sum()
        noise = privacy.counted_noise(self.engine.seed, number) if private else None
        collected = Aggregation(method, self.state, share, self.optimizer, noise)
        new: list[tuple[Tensor, Tree]] = []
        scoring = 0.0
        for clients in _chunks(self.group.share(present, counts[present]), self.chunk):
            received = method.dispatch(server, clients)
            local = Local(
                self.engine,
                train.take(clients),
                self.federation.ids[clients],
                number,
                share[clients].to(train.y.device),
            )
            outcome = method.client(received, self._own(clients), local)
            collected.bytes_down += bytes_each(received) * len(clients)
            good, outcome = usable(outcome)
            clients = clients[good]
            if len(clients) == 0:
                continue
            if scored:
                before = self.engine.clock()
                scores = self._score(outcome.adapted, clients, self.federation.test, outcome.mixture)
                collected.adapted.put(clients, scores)
                scoring += self.engine.clock() - before
            collected.add(clients, outcome.reply)
            new.append((clients, outcome.own))
            del outcome  # or this chunk's models would stay in memory until the next one's are trained
        if self.group.size > 1:
            new = collected.join(self.group, new, train.y.device)
        step = collected.result()
        if step is None:
            raise self._diverged(number)
        self._seconds.append(self.engine.clock() - begin - scoring)
        with self._own_replaced(new, number):
            served = self._served(step.served, self.federation.test) if scored else None
            validated = None
            if scored and self.config.validates and self.federation.val is not None:
                validated = self._served(step.served, self.federation.val)
            with held_back():
                step.complete(self.state, number)
                self.state.choice, self.state.mixture = (None, None) if served is None else served.chosen
                self._note_left_out(number, present, collected)
                for event in collected.events(number):
                    self._note(event)
                if served is not None:
                    collected.record(self.state, served, sum(self._seconds) / len(self._seconds), validated)
                    self._seconds = []
                    if self.config.keep == "best" and self._is_best():
                        self.state.remember_as_best()
        return collected.loss

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
                with held_back():
                    for clients, own in old:
                        put(self.state.own, clients, own)
            raise

    def _is_best(self) -> bool:
        history = self.state.history
        return validation.best_row(history, self.config) == len(history) - 1

    def _served(self, server: Tree, on: Samples) -> PerClient:
        """Scores, on these samples, of the model that every client, present or not, would be handed now."""
        everyone = torch.arange(len(self.federation))
        scores = PerClient(len(everyone))
        for clients in _chunks(self.group.share(everyone, self.federation.train.count.cpu()), self.chunk):
            candidates = self.method.candidates(server, self.state.own, clients)
            found = self._score(candidates, clients, on, self.method.mixture(self._own(clients)))
            scores.put(clients, found)
            scores.put_values(clients, own_metrics.scores(self.metrics, self.engine, candidates, on.take(clients), found))
        first, *others = self.group.everyones(scores)
        for other in others:
            first.merge(other)
        return first

    def _score(self, candidates: Tree, clients: Tensor, on: Samples, learned: Tensor | None) -> ServedScores:
        own_data = self.federation.val or self.federation.train
        scores = score(self.engine, candidates, own_data.take(clients), on.take(clients), self.config, learned)
        return without_attackers(scores, self.method, self.federation.ids[clients])

    def _note_choice(self) -> None:
        """Which of the models served now each client would use, if the last round was not scored. Each process computes it alone:
        a run that is stopped may have lost the others, and every process holds the states of all clients."""
        if self.state.choice is not None:
            return
        own_data = self.federation.val or self.federation.train
        parts = []
        for clients in torch.arange(len(self.federation)).split(self.chunk):
            candidates = self.method.candidates(self.state.served, self.state.own, clients)
            learned = self.method.mixture(self._own(clients))
            parts.append(choose(self.engine, candidates, own_data.take(clients), self.config, learned))
        self.state.choice = torch.cat([choice for choice, _ in parts])
        mixtures = [mixture for _, mixture in parts if mixture is not None]
        self.state.mixture = torch.cat(mixtures) if mixtures else None

    def _note_left_out(self, number: int, present: Tensor, collected: Aggregation) -> None:
        if collected.nobody_drawn:
            return
        answered = collected.answered.sort().values
        missing = [] if len(answered) == len(present) else present[~torch.isin(present, answered)].tolist()
        self.state.left_out += len(missing)
        if missing:
            self._note(f"round {number}: left out, their loss or update is not finite: clients {some(missing)}")

    def _note(self, event: str) -> None:
        self.events.append(event)
        self.state.events.append(event)

    def _diverged(self, number: int) -> DivergedError:
        lr = self.config.lr
        return DivergedError(
            f"training diverged in round {number}: no client's loss and update are finite any more. Lower lr (it is {lr:g}; try "
            f"{lr / 10:g}). The state after round {self.state.round} is kept.",
            self._result(),
        )

    def _report(self, loss: float, rounds: int, seconds: float, stopped: bool) -> bool:
        """Call on_round; whether the run is to end with this round because it asks for that."""
        events, self.events = self.events, []
        answers = []
        if self.on_round and self.group.first:
            history = self.state.history
            served, adapted = None, None
            if len(history):
                served, adapted = (_mean(history.last_scores(which)) for which in ("served", "adapted"))
            settings = self.state.settings
            about = (self.state.round, rounds, loss, served, adapted, seconds, events, history, settings, stopped)
            answers = [call(Progress(*about)) for call in self.on_round]
        return self.group.firsts("stop" in [answer for answer in answers if isinstance(answer, str)])

    def _write(self) -> None:
        if self.folder is not None and self.group.first and self._written != self.state.round:
            begin = time.perf_counter()
            self._note_choice()
            checkpoint.write(self.folder, self.state)
            self._written, self._since = self.state.round, time.perf_counter()
            self._writing = self._since - begin

    def _worth_writing(self) -> bool:
        """Writing must not take more than about a tenth of the time: rounds of small models are faster than writing a checkpoint.
        A run that is stopped writes its last round in any case; one that is killed loses at most this interval."""
        return time.perf_counter() - self._since >= PATIENCE * self._writing

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


def _mean(scores: NDArray[Any]) -> float:
    """Over the clients that have a score."""
    known = scores[~np.isnan(scores)]
    return float(known.mean()) if len(known) else math.nan


def _chunks(clients: Tensor, size: int) -> tuple[Tensor, ...]:
    """So many clients at a time; of none, none."""
    return clients.split(size) if len(clients) else ()
