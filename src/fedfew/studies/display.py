"""Progress of a study: on a terminal a bar, one line per worker and the runs left; elsewhere one plain line per run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedfew.studies.estimate import format_duration
from fedfew.studies.job import Job
from fedfew.util.spelling import counted, number

MARKS = {"done": ("✓", "green"), "failed": ("✗", "red"), "stopped": ("…", "yellow"), "busy": ("·", "dim")}


@dataclass
class Tally:
    """The runs so far."""

    total: int  # runs of the study
    before: int  # of these, done before this began
    seconds: dict[str, float]  # estimates of those to make
    done: int = 0
    failed: int = 0
    begun: float = field(default_factory=time.monotonic)
    shares: dict[str, float] = field(default_factory=dict)  # how much of each run is done
    at_work: dict[tuple[int, str], tuple[Job, dict[str, Any]]] = field(default_factory=dict)  # by worker and key
    last: dict[str, dict[str, Any]] = field(default_factory=dict)  # the newest event of a round, by key

    def update(self, worker: int, job: Job, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind in ("loading", "round"):
            self.at_work[worker, job.key] = job, event
            if kind == "round":
                self.last[job.key] = event
                self.shares[job.key] = event["round"] / event["rounds"]
            return
        self.at_work.pop((worker, job.key), None)
        if kind in ("done", "failed"):
            self.shares[job.key] = 1.0
            self.done += kind == "done"
            self.failed += kind == "failed"

    @property
    def left(self) -> int:
        return len(self.seconds) - self.done - self.failed

    @property
    def eta(self) -> float | None:
        """Seconds until the end, if what is left goes as fast as what was made."""
        made = sum(self.seconds[key] * share for key, share in self.shares.items())
        whole = sum(self.seconds.values())
        return (time.monotonic() - self.begun) * (whole - made) / made if made > 0 and self.left else None


def numbers(event: dict[str, Any]) -> str:
    """Mean served and adapted scores of the newest scored round."""
    return "  ".join(f"{name} {number(event[name], '.1%')}" for name in ("served", "adapted") if event.get(name) is not None)


class Lines:
    """A line for every run that is begun or ends."""

    def __init__(self, console: Console, tally: Tally) -> None:
        self.console = console
        self.tally = tally
        self.elsewhere: set[str] = set()

    def on_event(self, worker: int, job: Job, event: dict[str, Any]) -> None:
        self.tally.update(worker, job, event)
        if event["event"] == "busy":  # is sent again and again, and printed once
            if job.key in self.elsewhere:
                return
            self.elsewhere.add(job.key)
        if event["event"] in MARKS:
            self.console.print(finished_line(self.tally, job, event), soft_wrap=True)

    def stopping(self) -> None:
        self.console.print("stopping: runs end with their round and can be resumed; Ctrl-C again kills them")


class Screen(Lines):
    """The same on a terminal, where what is going on can be seen as well."""

    def __rich__(self) -> Group:
        tally = self.tally
        head = Table.grid(padding=(0, 2))
        head.add_row(
            ProgressBar(total=len(tally.seconds), completed=sum(tally.shares.values()), width=40),
            Text(f"{tally.before + tally.done}/{tally.total} done"),
            Text(f"{tally.failed} failed", "red" if tally.failed else "dim"),
            Text(f"{tally.left} left"),
            Text("" if tally.eta is None else f"about {format_duration(tally.eta)} to go", "dim"),
        )
        workers = Table.grid(padding=(0, 2))
        for (worker, _), (job, event) in sorted(tally.at_work.items()):
            where = "loading data" if event["event"] == "loading" else f"round {event['round']}/{event['rounds']}"
            workers.add_row(Text(f"{worker + 1}", "dim"), Text(job.label, "bold"), Text(where), Text(numbers(event)))
        return Group(head, workers)


def finished_line(tally: Tally, job: Job, event: dict[str, Any]) -> Text:
    mark, style = MARKS[event["event"]]
    line = Text.assemble((mark, style), f" {tally.before + tally.done + tally.failed}/{tally.total} ", (job.label, "bold"), "  ")
    if event["event"] == "failed":
        line.append(event["error"], "red")
    elif event["event"] == "busy":
        line.append("another runner makes it")
    elif job.key in tally.last:
        last = tally.last[job.key]
        line.append(
            f"{counted(last['rounds'], 'round')}  " if event["event"] == "done" else f"stopped after round {last['round']}  "
        )
        line.append(f"{numbers(last)}  {format_duration(last['seconds'])}")
    elif event["event"] == "done":
        line.append("by another runner")
    return line


@contextmanager
def display(console: Console, tally: Tally) -> Iterator[Lines]:
    if not console.is_terminal:
        yield Lines(console, tally)
        return
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        screen = Screen(console, tally)
        live.update(screen, refresh=True)
        yield screen
