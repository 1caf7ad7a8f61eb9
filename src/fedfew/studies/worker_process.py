"""A worker process as its runner sees it: started, given jobs, listened to, killed."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import IO, TYPE_CHECKING, Any

from fedfew.studies.worker import data_of

if TYPE_CHECKING:
    from fedfew.studies.job import Job

Events = queue.SimpleQueue[tuple["WorkerProcess", dict[str, Any] | None]]


@dataclass
class WorkerProcess:
    """A process of :mod:`fedfew.studies.worker_main`, and what it is doing."""

    number: int
    process: subprocess.Popen[str]
    ready: bool = False
    jobs: dict[str, Job] = field(default_factory=dict)  # by key, those it is making
    data: tuple[Any, ...] | None = None  # of its last job: it has them loaded
    last_event: float = field(default_factory=time.monotonic)
    timed_out: bool = False

    @classmethod
    def start(cls, number: int, arguments: dict[str, Any], log: IO[str], events: Events) -> WorkerProcess:
        """Start a worker whose events go to ``events``; None at its end. What it prints goes to the log."""
        # -P: a file in the working folder, such as json.py, must not take the place of a module that the worker imports.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fedfew.studies.worker_main", json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C goes to the runner, which lets workers finish their round
            env=os.environ | {"OMP_NUM_THREADS": str(arguments["threads"])},
        )
        worker = cls(number, process)
        threading.Thread(target=worker._read_events, args=(events,), daemon=True).start()
        return worker

    def _read_events(self, events: Events) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                event = json.loads(line)
            except json.JSONDecodeError:  # it was killed within a line
                break
            events.put((self, event))
        self.process.wait()
        events.put((self, None))

    def assign(self, jobs: Sequence[Job]) -> None:
        """Runs to be made: one, or several as a pack."""
        self.jobs, self.data, self.last_event = {job.key: job for job in jobs}, data_of(jobs[0].settings), time.monotonic()
        messages = [_message(job) for job in jobs]
        self.send(messages[0] if len(messages) == 1 else {"pack": messages})

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):  # it may be dead, which the end of its events reports
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()

    def close(self) -> None:
        """Close its input: there is nothing left to do."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()

    def kill(self) -> None:
        """Kill it, and whatever it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)  # a worker leads a session of its own
        self.process.kill()

    @property
    def exit_reason(self) -> str:
        code = self.process.returncode
        return f"signal {-code}, {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _message(job: Job) -> dict[str, Any]:
    candidates = [asdict(settings) for settings in job.candidates]
    return {"key": job.key, "settings": asdict(job.settings), "candidates": candidates, "values": list(job.values)}
