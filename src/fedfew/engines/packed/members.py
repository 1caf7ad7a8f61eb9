"""The runs of a pack, each in a thread, of which one runs at a time: what happens does not depend on the threads' timing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from fedfew.util.interrupts import held_back

PLACING, BEFORE, TRAINING, AFTER = range(-1, 3)  # stages of a run: before its first round, and in each round
_here = threading.local()


def current() -> Member | None:
    """The member of a pack whose thread this is; None outside of packs."""
    member: Member | None = getattr(_here, "member", None)
    return member


def clock() -> float:
    """Seconds of this run since some moment: of a member of a pack its share."""
    member = current()
    return time.perf_counter() if member is None else member.clock()


class Request(Protocol):
    """Work that a run waits for, and that may be done for several runs at once."""

    @property
    def stage(self) -> int:
        """Of two runs that are equally far in their rounds, the one at the lower stage goes on first."""

    @property
    def kind(self) -> Hashable:
        """Requests of one kind are fulfilled together."""

    def together(self, requests: Sequence[Any]) -> list[Any]:
        """The answers to requests of this kind."""

    def work(self) -> int:
        """How much it is, in any unit: seconds that requests took together are divided by it."""


@dataclass(eq=False)
class Member:
    """A run of a pack. It is active, or it waits for the answer to a request, or it has ended."""

    pack: Pack
    task: Callable[[], Any]
    request: Request | None = None
    answer: tuple[Any, BaseException | None] | None = None  # to the request, once it is known
    result: Any = None  # of the task
    error: BaseException | None = None  # that ended it
    begun: bool = False
    ended: bool = False
    rounds: int = 0  # that it has begun
    largest: int = 1  # number of runs, itself included, that were trained or scored together
    interrupted: bool = False
    _round: int | None = None
    _seconds: float = 0.0
    _since: float = field(default_factory=time.perf_counter)
    _idle: threading.Event = field(default_factory=threading.Event)
    _turn: threading.Event = field(default_factory=threading.Event)

    # -- in the thread of the run --------------------------------------------------------------------------------------------

    def ask(self, request: Request) -> Any:
        """Wait for the answer to a request."""
        self.request = request
        self._pause()
        assert self.answer is not None
        (value, error), self.answer, self.request = self.answer, None, None
        if error is not None:
            raise error
        return value

    def begin_round(self, round: int) -> None:
        if round != self._round:
            self._round, self.rounds = round, self.rounds + 1

    def clock(self) -> float:
        """Seconds in which this run was active, and its share of those in which several runs were served together."""
        return self._seconds + time.perf_counter() - self._since

    def _pause(self) -> None:
        self._seconds = self.clock()
        self._idle.set()
        self._turn.wait()
        self._turn.clear()
        self._since = time.perf_counter()

    def _run(self, threads: int) -> None:
        _here.member = self
        torch.set_num_threads(threads)  # every thread has a number of its own
        self._turn.wait()
        self._turn.clear()
        self._since = time.perf_counter()
        try:
            self.result = self.task()
        except BaseException as error:  # the pack reports it
            self.error = error
        finally:
            self.ended = True
            self._idle.set()

    # -- in the thread of the pack -------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._idle.set()
        threading.Thread(target=self._run, args=(torch.get_num_threads(),), daemon=True).start()

    def let_run(self) -> None:
        """Until it asks for something, or ends."""
        with held_back():  # all three or none: otherwise the pack would wait forever
            self.begun = True
            self._idle.clear()
            self._turn.set()
        self._idle.wait()

    def wait(self) -> None:
        self._idle.wait()

    def charge(self, seconds: float) -> None:
        self._seconds += seconds


@dataclass(eq=False)
class Pack:
    """Runs that are made side by side in one process; what they have in common is kept here."""

    size: int = 0
    shared: dict[Hashable, Any] = field(default_factory=dict)  # by what it depends on: engines, choices
    members: list[Member] = field(default_factory=list)

    def run(self, tasks: Sequence[Callable[[], Any]]) -> list[Any | BaseException]:
        """What each task returns, or the exception that ended it. A Ctrl-C reaches every run as KeyboardInterrupt."""
        self.size = len(tasks)
        self.members = [Member(self, task) for task in tasks]
        for member in self.members:
            member.start()
        while not all(member.ended for member in self.members):
            try:
                self._advance()
            except KeyboardInterrupt:
                for member in self.members:
                    member.interrupted = True
        return [member.result if member.error is None else member.error for member in self.members]

    def _advance(self) -> None:
        for member in self.members:
            member.wait()  # it is active if a Ctrl-C came while this thread waited for it
            if not member.ended and (not member.begun or member.answer is not None):
                member.let_run()
        waiting = [member for member in self.members if not member.ended]
        for member in waiting:
            if member.interrupted:
                member.interrupted, member.answer = False, (None, KeyboardInterrupt())
        waiting = [member for member in waiting if member.answer is None]
        if waiting:
            self._serve(_next(waiting))

    def _serve(self, members: list[Member]) -> None:
        """Fulfil the requests of these members, those of one kind together."""
        kinds: dict[Hashable, list[Member]] = {}
        for member in members:
            assert member.request is not None
            kinds.setdefault(member.request.kind, []).append(member)
        for group in kinds.values():
            begin = time.perf_counter()
            answers = _answers([member.request for member in group])
            _charge(group, time.perf_counter() - begin)
            for member, answer in zip(group, answers, strict=True):
                member.answer = answer
                if member.request is not None and member.request.stage != PLACING:
                    member.largest = max(member.largest, len(group))


def _next(waiting: list[Member]) -> list[Member]:
    """Those that go on first: the ones furthest behind, so that runs of different methods meet again in every round."""

    def place(member: Member) -> tuple[int, int]:
        assert member.request is not None
        return member.rounds, member.request.stage

    first = min(map(place, waiting))
    return [member for member in waiting if place(member) == first]


def _answers(requests: list[Any]) -> list[tuple[Any, BaseException | None]]:
    """Values and errors. If requests fail together, each is tried alone: an error belongs to the run that causes it."""
    try:
        return [(value, None) for value in requests[0].together(requests)]
    except Exception as error:
        if len(requests) == 1:
            return [(None, error)]
        return [answer for request in requests for answer in _answers([request])]


def _charge(group: list[Member], seconds: float) -> None:
    work = [member.request.work() for member in group if member.request is not None]
    for member, part in zip(group, work, strict=True):
        member.charge(seconds * part / sum(work))
