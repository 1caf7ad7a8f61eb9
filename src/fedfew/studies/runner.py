"""Many runs in a few worker processes: each made once, whoever asks for it and however often one is interrupted.

Runs that share a federation go to the same worker where possible, which then loads it once; otherwise the longest go first. A run
that another runner holds is left to it, and looked after again when nothing else is left to do.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from fedfew.studies.folder import RunFolder
from fedfew.studies.worker import data_of
from fedfew.training.settings import Settings

DEATHS = 3  # of its process, after which a run counts as failed
LOOK_AGAIN = 1.0  # seconds between looks at a run that another runner holds
TICK = 0.2
SIDE_BY_SIDE = 3  # workers on one GPU under MPS: on an H200 more brought nothing (docs/gpu.md)


@dataclass(frozen=True)
class Job:
    """A run to be made."""

    key: str
    label: str
    settings: Settings
    seconds: float = 1.0  # an estimate, to put the longest first


@dataclass
class Report:
    """What came of the jobs."""

    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # key → why
    left: list[str] = field(default_factory=list)  # not made, for the runner was stopped
    stopped: bool = False


class Watcher(Protocol):
    """Who wants to know how it goes."""

    def news(self, worker: int, job: Job, event: dict[str, Any]) -> None:
        """``loading``, ``round``, ``done``, ``failed``, ``busy`` or ``stopped``, as :mod:`fedfew.studies.worker` tells them."""

    def stopping(self) -> None: ...


def default_workers(device: str) -> int:
    """A worker a core on a CPU, with one thread each. On a GPU one, for two take turns; some where they run side by side."""
    from fedfew.training.api import device_named

    if device_named(device).type == "cpu":
        return cores()
    return SIDE_BY_SIDE if mps_is_on() else 1


def mps_is_on() -> bool:
    """Does NVIDIA's Multi-Process Service let processes use a GPU at the same time? ``nvidia-cuda-mps-control -d`` starts it."""
    return (Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")) / "control").exists()


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads(workers: int) -> int:
    """Threads of each of so many workers: they share the cores; never more than OMP_NUM_THREADS, where that is set."""
    share, most = max(1, cores() // workers), os.environ.get("OMP_NUM_THREADS", "")
    return min(share, int(most)) if most.isdigit() and int(most) > 0 else share


def run(
    root: Path,
    jobs: list[Job],
    watcher: Watcher,
    *,
    workers: int,
    code: str,
    log: Path,
    keep_models: bool = False,
    finished: Callable[[], None] = lambda: None,
) -> Report:
    """Make all these runs. finished: called after each."""
    count = max(1, min(workers, len(jobs)))
    given = {"root": str(root), "keep_models": keep_models, "code": code, "workers": count, "threads": threads(count)}
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "a", encoding="utf-8") as written:
        runner = _Runner(root, jobs, watcher, finished, given, written)
        return runner.run(count)


@dataclass
class _Hand:
    """A worker process, and what it is doing."""

    number: int
    process: subprocess.Popen[str]
    ready: bool = False
    job: Job | None = None
    data: tuple[Any, ...] | None = None

    def give(self, job: Job) -> None:
        self.job, self.data = job, data_of(job.settings)
        self.say({"key": job.key, "settings": asdict(job.settings)})

    def say(self, order: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):  # it may be dead, which will be noticed
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()


@dataclass
class _Runner:
    root: Path
    waiting: list[Job]
    watcher: Watcher
    finished: Callable[[], None]
    given: dict[str, Any]
    log: IO[str]
    report: Report = field(default_factory=Report)
    hands: dict[int, _Hand] = field(default_factory=dict)
    elsewhere: dict[str, tuple[Job, float]] = field(default_factory=dict)  # held by another runner; when to look again
    deaths: dict[str, int] = field(default_factory=dict)
    events: queue.SimpleQueue[tuple[_Hand, dict[str, Any] | None]] = field(default_factory=queue.SimpleQueue)
    interrupts: int = 0

    def run(self, count: int) -> Report:
        with self._signals():
            try:
                for number in range(count if self.waiting else 0):
                    self._hire(number)
                while self._unfinished():
                    self._hand_out()
                    self._listen()
                    self._heed_interrupts()
            finally:
                self._dismiss()
        self.report.left += [job.key for job in [*self.waiting, *(job for job, _ in self.elsewhere.values())]]
        return self.report

    def _unfinished(self) -> bool:
        at_work = any(hand.job for hand in self.hands.values())
        return at_work or (not self.report.stopped and bool(self.waiting or self.elsewhere))

    # -- workers -------------------------------------------------------------------------------------------------------------

    def _hire(self, number: int) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "fedfew.studies.worker", json.dumps(self.given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # a Ctrl-C is for the runner, which lets workers end their round
            env=os.environ | {"OMP_NUM_THREADS": str(self.given["threads"])},
        )
        hand = _Hand(number, process)
        self.hands[number] = hand
        threading.Thread(target=self._hear, args=(hand,), daemon=True).start()

    def _hear(self, hand: _Hand) -> None:
        """Put what a worker tells into the queue; None at its end."""
        assert hand.process.stdout is not None
        for line in hand.process.stdout:
            try:
                self.events.put((hand, json.loads(line)))
            except json.JSONDecodeError:  # it was killed within a line
                break
        hand.process.wait()
        self.events.put((hand, None))

    def _dismiss(self) -> None:
        """Let the workers go; they are killed where they take longer than a moment, for they have nothing to do any more."""
        for hand in self.hands.values():
            assert hand.process.stdin is not None
            with suppress(OSError):
                hand.process.stdin.close()
        for hand in self.hands.values():
            try:
                hand.process.wait(5 if hand.job is None else 0)
            except subprocess.TimeoutExpired:
                hand.process.kill()
                hand.process.wait()

    # -- work ----------------------------------------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        if self.report.stopped:
            return
        for hand in self.hands.values():
            while hand.ready and hand.job is None and (job := self._next(hand)) is not None:
                if RunFolder.of(self.root, job.key).finished:  # by another runner
                    self._done(hand, job)
                else:
                    hand.give(job)

    def _next(self, hand: _Hand) -> Job | None:
        """The longest run on the worker's own data, else on those that most remains to be done with and nobody works on."""
        if not self.waiting:
            return self._held_elsewhere()
        taken = {other.data for other in self.hands.values() if other.job is not None}
        left: dict[tuple[Any, ...], float] = {}
        for job in self.waiting:
            left[data_of(job.settings)] = left.get(data_of(job.settings), 0.0) + job.seconds
        chosen = hand.data if hand.data in left else max(left, key=lambda data: (data not in taken, left[data]))
        job = max((job for job in self.waiting if data_of(job.settings) == chosen), key=lambda job: job.seconds)
        self.waiting.remove(job)
        return job

    def _held_elsewhere(self) -> Job | None:
        for key, (job, when) in self.elsewhere.items():
            if RunFolder.of(self.root, key).finished or time.monotonic() >= when:
                del self.elsewhere[key]
                return job
        return None

    # -- news ----------------------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        try:
            hand, event = self.events.get(timeout=TICK)
        except queue.Empty:
            return
        if event is None:
            self._lost(hand)
        elif event["event"] == "ready":
            hand.ready = True
        else:
            self._take_in(hand, event)

    def _take_in(self, hand: _Hand, event: dict[str, Any]) -> None:
        job = hand.job
        assert job is not None, "news of a run that was not asked for"
        kind = event["event"]
        if kind in ("loading", "round"):
            self.watcher.news(hand.number, job, event)
            return
        hand.job = None
        if kind == "done":
            self._done(hand, job)
        elif kind == "failed":
            self._failed(hand, job, event["error"])
        elif kind == "stopped":
            self.report.left.append(job.key)
            self.watcher.news(hand.number, job, event)
        else:
            self.elsewhere[job.key] = job, time.monotonic() + LOOK_AGAIN
            self.watcher.news(hand.number, job, event)

    def _done(self, hand: _Hand, job: Job) -> None:
        self.report.done.append(job.key)
        self.watcher.news(hand.number, job, {"event": "done", "key": job.key})
        self.finished()

    def _failed(self, hand: _Hand, job: Job, why: str) -> None:
        self.report.failed[job.key] = why
        self.watcher.news(hand.number, job, {"event": "failed", "key": job.key, "error": why})
        self.finished()

    def _lost(self, hand: _Hand) -> None:
        """A worker is gone: as it should where all are stopping; else its run is taken up by the next one."""
        job, hand.job, hand.ready = hand.job, None, False
        if self.hands.get(hand.number) is not hand:
            return
        del self.hands[hand.number]
        if self.report.stopped:
            self.report.left += [job.key] if job else []
            return
        code = hand.process.returncode
        how = f"signal {-code}, {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if job is None:
            raise RuntimeError(f"a worker process ended before it had anything to do ({how}); {self.log.name} may say why")
        self.deaths[job.key] = self.deaths.get(job.key, 0) + 1
        if self.deaths[job.key] < DEATHS:
            self.waiting.append(job)
        else:
            why = f"its process died {DEATHS} times ({how}); too little memory is the usual reason, fewer --workers the cure"
            RunFolder.of(self.root, job.key).fail(why, "Died")
            self._failed(hand, job, why)
        if self._unfinished():
            self._hire(hand.number)

    # -- Ctrl-C --------------------------------------------------------------------------------------------------------------

    def _heed_interrupts(self) -> None:
        if self.interrupts and not self.report.stopped:
            self.report.stopped = True
            self.watcher.stopping()
            for hand in self.hands.values():
                hand.say({"stop": True})
        if self.interrupts > 1:
            for hand in self.hands.values():
                hand.process.kill()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Count interrupts instead of being torn out of whatever is going on."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def count(*_: object) -> None:
            self.interrupts += 1

        before = {number: signal.signal(number, count) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
