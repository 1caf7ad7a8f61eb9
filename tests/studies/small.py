"""Tiny studies, and ways to run and disturb them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from fedfew.studies.folder import RunFolder
from fedfew.studies.job import Job
from fedfew.studies.study import Study, parse

TINY: dict[str, Any] = {
    "name": "tiny",
    "seeds": 1,
    "base": {
        "rounds": 3,
        "sample": 80,
        "clients": 3,
        "model": "linear",
        "engine": "sequential",  # the quickest to start
        "device": "cpu",
        "batch_size": 20,
    },
    "columns": {"iid": {"dataset": "digits", "partition": "iid"}},
    "rows": {"FedAvg": {"method": "fedavg"}, "FedFew": {"method": {"name": "fedfew", "models": 2}}},
}


def text(**changes: Any) -> str:
    """The tiny study's file with entries replaced (None: taken away); those of ``base`` are added to."""
    document = TINY | {name: value for name, value in changes.items() if name != "base"}
    document["base"] = TINY["base"] | changes.get("base", {})
    return yaml.safe_dump({name: value for name, value in document.items() if value is not None}, sort_keys=False)


def study(**changes: Any) -> Study:
    return parse(text(**changes), "tiny.yaml")


class Heard:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.stops = 0

    def on_event(self, worker: int, job: Job, event: dict[str, Any]) -> None:
        self.events.append((job.label, event["event"]))

    def stopping(self) -> None:
        self.stops += 1

    def count(self, kind: str) -> int:
        return sum(heard == kind for _, heard in self.events)


def outcome(root: Path, key: str) -> dict[str, Any]:
    """What a run left behind, but for what may differ between two makings of it: times."""
    result = RunFolder.of(root, key).result
    assert result is not None
    run = {name: value for name, value in result["run"].items() if name not in ("seconds", "seconds_per_round", "started")}
    rounds = [{name: value for name, value in row.items() if name != "seconds"} for row in result["rounds"]]
    return {"run": run, "clients": result["clients"], "rounds": rounds}


def begun(root: Path, key: str) -> list[int]:
    """The processes that took a run up."""
    return [attempt["pid"] for attempt in RunFolder.of(root, key).attempts if attempt["event"] == "begun"]


def command(file: Path, root: Path, *flags: str) -> subprocess.Popen[str]:
    """``fedfew study run`` in a process of its own."""
    words = [sys.executable, "-m", "fedfew", "study", "run", str(file), "--folder", str(root), *flags]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "150"}
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def made(found: Study, root: Path, **options: Any) -> list[Any]:
    """All runs of a study, made in this process; its cells."""
    from fedfew.studies.options import Options
    from fedfew.studies.plan import cells
    from fedfew.studies.worker import Worker

    planned = cells(found, Options(**options))
    worker = Worker(root, keep_models=False, code="abc", workers=1, send=lambda event: None)
    for cell in planned:
        worker.make(cell.key, cell.settings)
    return planned
