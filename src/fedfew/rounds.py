"""The round loop: dispatch, local work, aggregation, scoring, checkpoints."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedfew import checkpoint, counted
from fedfew.checkpoint import State
from fedfew.distributed import Group, PeerError, stoppable, unstoppable
from fedfew.engines import Engine, Local
from fedfew.federation import Federation
from fedfew.methods import Method
from fedfew.methods.base import Outcome, Reply
from fedfew.run import ModelFactory, Run
from fedfew.stack import Tree, WeightedMean, branch, bytes_each, finite, leaves, put, take, tensor, to


@dataclass(frozen=True)
class Progress:
    """What a run tells after every round."""

    round: int
    rounds: int
    loss: float  # mean over clients of the least loss they reported
    served: float | None  # mean test accuracies of the last scored round
    adapted: float | None
    seconds: float  # since this call of train began
    events: list[str]  # what happened in this round that is worth a line

    @property
    def done(self) -> bool:
        return self.round == self.rounds


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
    chunk: int
    factory: ModelFactory
    state: State
    folder: Path | None
    checkpoint_every: int
    on_round: Callable[[Progress], None] | None
    group: Group = field(default_factory=Group)
    events: list[str] = field(default_factory=list)
    _written: int = -1
    _seconds: list[float] = field(default_factory=list)

    def run(self) -> Run:
        begin = time.perf_counter()
        rounds, score_every = self.state.settings["rounds"], self.state.settings["score_every"]
        with stoppable(self.group):
            try:
                while self.state.round < rounds:
                    number = self.state.round + 1
                    scored = number % score_every == 0 or number == rounds
                    loss = self._round(number, scored)
                    if self.folder and (number % self.checkpoint_every == 0 or number == rounds):
                        self._write()
                    self._tell(loss, rounds, time.perf_counter() - begin)
            except (KeyboardInterrupt, DivergedError, PeerError) as stopped:
                with unstoppable(self.group):
                    self._write()
                if isinstance(stopped, KeyboardInterrupt):
                    raise Interrupted(self._result()) from None
                raise
        return self._result()

    def _round(self, number: int, scored: bool) -> float:
        """One round, start to end; the state changes only when it is complete. Returns the mean loss reported."""
        begin = time.perf_counter()
        method, server, train = self.method, self.state.server, self.federation.train
        present = counted.participants(self.engine.seed, number, self.federation.ids, self.state.settings["participation"])
        counts = train.count.cpu()
        share = torch.zeros(len(self.federation))
        share[present] = counts[present] / counts[present].sum()
        seen = _Seen(len(self.federation))
        mean: WeightedMean | None = None
        new: list[tuple[Tensor, Tree]] = []
        noted: list[tuple[Tensor, Reply]] = []
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
            seen.bytes_down += bytes_each(received) * len(clients)
            if scored:
                before = time.perf_counter()
                seen.adapted.put(clients, self._score(outcome.adapted, clients))
                scoring += time.perf_counter() - before
            good, outcome = _finite_only(outcome)
            clients = clients[good]
            if len(clients) == 0:
                continue
            reply = outcome.reply
            seen.add(clients, reply)
            if reply.update:
                mean = mean or WeightedMean(reply.losses.shape[1])
                mean.add(method.log_weights(reply, share[clients], clients), reply.update)
            if method.absorbs:
                noted.append((clients, reply))
            new.append((clients, outcome.own))
            del outcome, reply  # or this chunk's models would stay in memory until the next one's are trained
        if self.group.size > 1:
            seen, mean, new, noted = self._exchanged(seen, mean, new, noted)
        next_server = server
        for clients, reply in noted:
            next_server = method.absorb(next_server, clients, reply)
        if mean is not None:
            next_server = method.aggregate(next_server, mean)
        answered = torch.cat([clients for clients, _ in new]) if new else present[:0]
        if len(answered) == 0 or not all(bool(t.isfinite().all()) for t in leaves(next_server)):
            raise self._diverged(number)
        self._seconds.append(time.perf_counter() - begin - scoring)
        with self._own_replaced(new, number):
            served = self._served(next_server) if scored else None
            with _uninterrupted():
                self.state.server, self.state.round = next_server, number
                self._note_left_out(number, present, answered)
                if served is not None:
                    self._record(seen, served, share, answered)
        assert seen.losses is not None
        return float(seen.losses[answered].amin(1).mean())

    def _exchanged(
        self, seen: _Seen, mean: WeightedMean | None, new: list[tuple[Tensor, Tree]], noted: list[tuple[Tensor, Reply]]
    ) -> tuple[_Seen, WeightedMean | None, list[tuple[Tensor, Tree]], list[tuple[Tensor, Reply]]]:
        """The same of all processes' clients, and the same in all of them."""
        for each in (everyones := self.group.everyones(seen))[1:]:
            everyones[0].merge(each)
        mine: Tree = {"mean": {} if mean is None else mean.parts()}
        for i, (clients, own) in enumerate(new):
            mine[f"new{i}"] = {"clients": clients, "own": own}
        for i, (clients, reply) in enumerate(noted):
            mine[f"noted{i}"] = {"clients": clients, "update": reply.update, "losses": reply.losses, "samples": reply.samples}
        total: WeightedMean | None = None
        all_new, all_noted = [], []
        for theirs in self.group.everyones_trees(mine, self.federation.train.y.device):
            for name in theirs:
                part = branch(theirs, name)
                if name.startswith("new"):
                    all_new.append((tensor(part, "clients").cpu(), branch(part, "own")))
                elif name.startswith("noted"):
                    reply = Reply(branch(part, "update"), tensor(part, "losses"), tensor(part, "samples"))
                    all_noted.append((tensor(part, "clients").cpu(), reply))
                else:
                    total = total or WeightedMean(len(tensor(part, "total")))
                    total.merge(part)
        return everyones[0], total, all_new, all_noted

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
                with _uninterrupted():
                    for clients, own in old:
                        put(self.state.own, clients, own)
            raise

    def _served(self, server: Tree) -> _PerClient:
        """Scores of the model that every client, present or not, would be handed now."""
        everyone = torch.arange(len(self.federation))
        scores = _PerClient(len(everyone))
        for clients in _chunks(self.group.share(everyone, self.federation.train.count.cpu()), self.chunk):
            candidates = self.method.serve(self.method.dispatch(server, clients), self._own(clients))
            scores.put(clients, self._score(candidates, clients))
        first, *others = self.group.everyones(scores)
        for other in others:
            first.merge(other)
        return first

    def _score(self, candidates: Tree, clients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Which of its candidates ``[1 or C, S, …]`` fits a client's training data best; that one's test accuracy and loss."""
        if leaves(candidates)[0].shape[1] == 1:
            choice = torch.zeros(len(clients), dtype=torch.int64)
        else:
            own_data = self.federation.val or self.federation.train
            choice = self.engine.losses(candidates, own_data.take(clients)).argmin(1).cpu()
        scores = self.engine.score(candidates, self.federation.test.take(clients))
        at = torch.arange(len(clients)), choice
        return choice, scores.accuracy.cpu()[at], scores.loss.cpu()[at]

    def _note_left_out(self, number: int, present: Tensor, answered: Tensor) -> None:
        missing = present[~torch.isin(present, answered)].tolist()
        if missing:
            self.state.left_out += len(missing)
            names = ", ".join(map(str, missing[:10])) + (", …" if len(missing) > 10 else "")
            event = f"round {number}: left out, their loss or update is not finite: clients {names}"
            self.events.append(event)
            self.state.events.append(event)

    def _record(self, seen: _Seen, served: _PerClient, share: Tensor, answered: Tensor) -> None:
        assert seen.losses is not None
        columns: dict[str, Any] = {}
        for name, value in self.method.diagnose(seen.losses[answered], share[answered], answered).items():
            columns[name] = value.cpu().float()
            if value.ndim:
                columns[name] = torch.full((len(share), *value.shape[1:]), torch.nan)
                columns[name][answered] = value.cpu().float()
        self.state.history.append(
            round=self.state.round,
            served_accuracy=served.accuracy,
            served_loss=served.loss,
            adapted_accuracy=seen.adapted.accuracy,
            adapted_loss=seen.adapted.loss,
            choice=served.choice,
            losses=seen.losses,
            seconds=sum(self._seconds) / len(self._seconds),
            bytes_up=seen.bytes_up,
            bytes_down=seen.bytes_down,
            left_out=self.state.left_out,
            **columns,
        )
        self._seconds, self.state.left_out = [], 0

    def _diverged(self, number: int) -> DivergedError:
        lr = self.state.settings["lr"]
        return DivergedError(
            f"training diverged in round {number}: no client's loss and update are finite any more. Lower lr (it is {lr:g}; try "
            f"{lr / 10:g}). The state after round {self.state.round} is kept.",
            self._result(),
        )

    def _tell(self, loss: float, rounds: int, seconds: float) -> None:
        events, self.events = self.events, []
        if self.on_round is not None and self.group.first:
            history = self.state.history
            served, adapted = None, None
            if len(history):
                served = float(history.last("served_accuracy").mean())
                adapted = float(np.nanmean(history.last("adapted_accuracy")))
            self.on_round(Progress(self.state.round, rounds, loss, served, adapted, seconds, events))

    def _write(self) -> None:
        if self.folder is not None and self.group.first and self._written != self.state.round:
            checkpoint.write(self.folder, self.state)
            self._written = self.state.round

    def _result(self) -> Run:
        state = self.state
        on_cpu = replace(state, server=to(state.server, "cpu"), own=to(state.own, "cpu"))
        return Run(on_cpu, self.factory, self.method)


class _PerClient:
    """Choice, accuracy and loss of each of M clients, NaN where there is none yet."""

    def __init__(self, clients: int) -> None:
        self.choice = torch.full((clients,), -1)
        self.accuracy = torch.full((clients,), torch.nan)
        self.loss = torch.full((clients,), torch.nan)

    def put(self, clients: Tensor, scores: tuple[Tensor, Tensor, Tensor]) -> None:
        self.choice[clients], self.accuracy[clients], self.loss[clients] = scores

    def merge(self, other: _PerClient) -> None:
        """Take in the scores of other clients."""
        theirs = (other.choice >= 0).nonzero()[:, 0]
        self.put(theirs, (other.choice[theirs], other.accuracy[theirs], other.loss[theirs]))


class _Seen:
    """What a round's clients reported, put together chunk by chunk."""

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.adapted = _PerClient(clients)
        self.losses: Tensor | None = None
        self.bytes_up = 0
        self.bytes_down = 0

    def add(self, clients: Tensor, reply: Reply) -> None:
        if self.losses is None:
            self.losses = torch.full((self.clients, reply.losses.shape[1]), torch.nan)
        self.losses[clients] = reply.losses.cpu().float()
        self.bytes_up += reply.bytes_each * len(clients)

    def merge(self, other: _Seen) -> None:
        """Take in what other clients reported."""
        self.adapted.merge(other.adapted)
        if self.losses is None or other.losses is None:
            self.losses = other.losses if self.losses is None else self.losses
        else:
            self.losses = torch.where(other.losses.isnan(), self.losses, other.losses)
        self.bytes_up += other.bytes_up
        self.bytes_down += other.bytes_down


def _chunks(clients: Tensor, size: int) -> tuple[Tensor, ...]:
    """So many clients at a time; of none, none."""
    return clients.split(size) if len(clients) else ()


def _finite_only(outcome: Outcome) -> tuple[Tensor, Outcome]:
    """Positions (in the stack) of the clients whose every number is finite, and the outcome for them alone."""
    reply = outcome.reply
    ok = finite({"losses": reply.losses, "update": reply.update, "own": outcome.own})
    at = ok.nonzero()[:, 0]
    if len(at) < len(ok):
        reply = Reply(take(reply.update, at), reply.losses[at], reply.samples[at])
        outcome = Outcome(reply, take(outcome.own, at), outcome.adapted)
    return at.cpu(), outcome


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold a Ctrl-C back until the few lines within are through."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[bool] = []
    before = signal.signal(signal.SIGINT, lambda *_: held.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if held:
        raise KeyboardInterrupt
