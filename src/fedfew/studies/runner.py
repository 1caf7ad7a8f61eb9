"""Many runs in a few worker processes: each run is made once, however many runners ask for it and however often they are stopped.

Runs that share a federation go to the same worker where possible, which then loads it once; otherwise the longest go first. A run
that another runner holds is left to it, and checked again when nothing else is left to do.
"""

from __future__ import annotations

import queue
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from fedfew.studies.folder import RunFolder
from fedfew.studies.job import Job, Report, Watcher
from fedfew.studies.worker import data_of
from fedfew.studies.worker_process import WorkerProcess
from fedfew.studies.workers import threads
from fedfew.util.interrupts import handled_by

CRASHES = 3  # of the process that makes a run, after which the run counts as failed
FAILED_STARTS = 3  # in a row, of a worker, after which it is not started again
CHECK_AGAIN = 1.0  # seconds between two checks of a run that another runner holds
POLL = 0.2  # seconds
TIME_LIMIT = 6 * 3600.0  # seconds that a run may go without finishing a round


def run(
    root: Path,
    jobs: list[Job],
    watcher: Watcher,
    *,
    workers: int,
    code: str,
    log: Path,
    keep_models: bool = False,
    time_limit: float | None = TIME_LIMIT,
    pack: int = 1,
    on_finished: Callable[[], None] = lambda: None,
) -> Report:
    """Make all these runs.

    pack: how many a worker makes at a time, in one stack. time_limit: seconds without a finished round after which a run's
    process is killed and the run counts as failed; None: no limit. on_finished: called after each run.
    """
    count = max(1, min(workers, len(jobs)))
    arguments = {"root": str(root), "keep_models": keep_models, "code": code, "workers": count, "threads": threads(count)}
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "a", encoding="utf-8") as log_file:
        return _Runner(root, list(jobs), watcher, on_finished, arguments, log_file, time_limit, pack).run(count)


@dataclass
class _Runner:
    root: Path
    waiting: list[Job]
    watcher: Watcher
    on_finished: Callable[[], None]
    arguments: dict[str, Any]  # of the workers
    log: IO[str]
    time_limit: float | None = TIME_LIMIT
    pack: int = 1
    report: Report = field(default_factory=Report)
    workers: dict[int, WorkerProcess] = field(default_factory=dict)
    held_elsewhere: dict[str, tuple[Job, float]] = field(default_factory=dict)  # by another runner; when to check again
    crashes: dict[str, int] = field(default_factory=dict)  # by key
    alone: set[str] = field(default_factory=set)  # keys of runs whose pack died: they are made one by one
    failed_starts: dict[int, int] = field(default_factory=dict)  # by number of the worker, in a row
    events: queue.SimpleQueue[tuple[WorkerProcess, dict[str, Any] | None]] = field(default_factory=queue.SimpleQueue)
    interrupts: int = 0

    def run(self, count: int) -> Report:
        with handled_by(self._count_interrupt, signal.SIGINT, signal.SIGTERM):
            try:
                for number in range(count if self.waiting else 0):
                    self._start_worker(number)
                while self._unfinished():
                    self._assign_jobs()
                    self._handle_event()
                    self._enforce_time_limit()
                    self._handle_interrupts()
            finally:
                self._shut_down()
        self.report.left += [job.key for job in [*self.waiting, *(job for job, _ in self.held_elsewhere.values())]]
        return self.report

    def _unfinished(self) -> bool:
        working = any(worker.jobs for worker in self.workers.values())
        return working or (not self.report.stopped and bool(self.waiting or self.held_elsewhere))

    # -- workers -------------------------------------------------------------------------------------------------------------

    def _start_worker(self, number: int) -> None:
        self.workers[number] = WorkerProcess.start(number, self.arguments, self.log, self.events)

    def _shut_down(self) -> None:
        """End the workers; one that is still busy, or does not end within seconds, is killed."""
        for worker in self.workers.values():
            worker.close()
        for worker in self.workers.values():
            try:
                worker.process.wait(0 if worker.jobs else 5)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.process.wait()

    # -- jobs ----------------------------------------------------------------------------------------------------------------

    def _assign_jobs(self) -> None:
        if self.report.stopped:
            return
        for worker in self.workers.values():
            while worker.ready and not worker.jobs and (job := self._next_job(worker)) is not None:
                if RunFolder.of(self.root, job.key).finished:  # by another runner
                    self._record_done(worker, job)
                else:
                    worker.assign([job, *self._packed_with(job)])

    def _packed_with(self, first: Job) -> list[Job]:
        """Other jobs that go into one stack with this one: each worker's part of them, the longest first."""
        if first.pack is None or first.key in self.alone:
            return []
        fitting = [job for job in self.waiting if job.pack == first.pack and job.key not in self.alone]
        fitting = [job for job in fitting if not RunFolder.of(self.root, job.key).finished]
        part = -(-(1 + len(fitting)) // max(1, sum(not worker.jobs for worker in self.workers.values())))
        found = sorted(fitting, key=lambda job: -job.seconds)[: min(self.pack, part) - 1]
        self.waiting = [job for job in self.waiting if job not in found]
        return found

    def _next_job(self, worker: WorkerProcess) -> Job | None:
        """The longest run on the data the worker has loaded; else on the data with most work left that no other worker uses."""
        if not self.waiting:
            return self._next_held_elsewhere()
        in_use = {other.data for other in self.workers.values() if other.jobs}
        left: dict[tuple[Any, ...], float] = {}
        for job in self.waiting:
            left[data_of(job.settings)] = left.get(data_of(job.settings), 0.0) + job.seconds
        chosen = worker.data if worker.data in left else max(left, key=lambda data: (data not in in_use, left[data]))
        job = max((job for job in self.waiting if data_of(job.settings) == chosen), key=lambda job: job.seconds)
        self.waiting.remove(job)
        return job

    def _next_held_elsewhere(self) -> Job | None:
        for key, (job, when) in self.held_elsewhere.items():
            if RunFolder.of(self.root, key).finished or time.monotonic() >= when:
                del self.held_elsewhere[key]
                return job
        return None

    # -- events --------------------------------------------------------------------------------------------------------------

    def _handle_event(self) -> None:
        try:
            worker, event = self.events.get(timeout=POLL)
        except queue.Empty:
            return
        if event is None:
            self._handle_exit(worker)
        elif event["event"] == "ready":
            worker.ready = True
            self.failed_starts[worker.number] = 0
        else:
            self._handle_job_event(worker, event)

    def _handle_job_event(self, worker: WorkerProcess, event: dict[str, Any]) -> None:
        job = worker.jobs.get(event["key"])
        if job is None:  # it was killed after it had sent this
            return
        kind = event["event"]
        worker.last_event = time.monotonic()
        if kind in ("loading", "round"):
            self.watcher.on_event(worker.number, job, event)
            return
        del worker.jobs[job.key]
        if kind == "done":
            self._record_done(worker, job)
        elif kind == "failed":
            self._record_failed(worker, job, event["error"])
        elif kind == "stopped":
            self.report.left.append(job.key)
            self.watcher.on_event(worker.number, job, event)
        else:
            self.held_elsewhere[job.key] = job, time.monotonic() + CHECK_AGAIN
            self.watcher.on_event(worker.number, job, event)

    def _record_done(self, worker: WorkerProcess, job: Job) -> None:
        self.report.done.append(job.key)
        self.watcher.on_event(worker.number, job, {"event": "done", "key": job.key})
        self.on_finished()

    def _record_failed(self, worker: WorkerProcess, job: Job, reason: str) -> None:
        self.report.failed[job.key] = reason
        self.watcher.on_event(worker.number, job, {"event": "failed", "key": job.key, "error": reason})
        self.on_finished()

    # -- workers that die or hang --------------------------------------------------------------------------------------------

    def _handle_exit(self, worker: WorkerProcess) -> None:
        """A worker has ended. Unless all are stopping, another takes its place, and its runs are tried again."""
        jobs, was_ready, worker.jobs, worker.ready = list(worker.jobs.values()), worker.ready, {}, False
        if self.workers.get(worker.number) is not worker:
            return
        del self.workers[worker.number]
        if self.report.stopped:
            self.report.left += [job.key for job in jobs]
            return
        if len(jobs) == 1:
            self._retry_or_fail(worker, jobs[0])
        elif jobs:  # which of them it was shows when each is made alone
            self.alone |= {job.key for job in jobs}
            self.waiting += jobs
        elif not was_ready:
            self.failed_starts[worker.number] = self.failed_starts.get(worker.number, 0) + 1
        if not self._unfinished():
            return
        if self.failed_starts.get(worker.number, 0) < FAILED_STARTS:
            self._start_worker(worker.number)
        elif not self.workers:
            raise RuntimeError(
                f"no worker process can be started: it ended {FAILED_STARTS} times before its first run ({worker.exit_reason}); "
                f"{self.log.name} may say why"
            )

    def _retry_or_fail(self, worker: WorkerProcess, job: Job) -> None:
        if worker.timed_out:
            reason = (
                f"no round was finished within the time limit of {self.time_limit or 0:g} s, so its process was killed "
                "(--time-limit sets the limit)"
            )
            RunFolder.of(self.root, job.key).fail(reason, "TimeLimit")
            self._record_failed(worker, job, reason)
            return
        self.crashes[job.key] = self.crashes.get(job.key, 0) + 1
        if self.crashes[job.key] < CRASHES:
            self.waiting.append(job)
            return
        reason = (
            f"its process died {CRASHES} times ({worker.exit_reason}); the usual reason is too little memory, which fewer "
            "--workers need less of"
        )
        RunFolder.of(self.root, job.key).fail(reason, "Crashed")
        self._record_failed(worker, job, reason)

    def _enforce_time_limit(self) -> None:
        limit = float("inf") if self.time_limit is None else self.time_limit
        for worker in self.workers.values():
            if worker.jobs and not worker.timed_out and time.monotonic() - worker.last_event > limit:
                worker.timed_out = True
                worker.kill()

    # -- Ctrl-C --------------------------------------------------------------------------------------------------------------

    def _handle_interrupts(self) -> None:
        if self.interrupts and not self.report.stopped:
            self.report.stopped = True
            self.watcher.stopping()
            for worker in self.workers.values():
                worker.send({"stop": True})
        if self.interrupts > 1:
            for worker in self.workers.values():
                worker.kill()

    def _count_interrupt(self, *_: object) -> None:
        """In place of what it would do, so that none is raised in the middle of something."""
        self.interrupts += 1
