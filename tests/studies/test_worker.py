"""A worker process: it ends when it is asked to, or when its runner has died, also while it loads data."""

from __future__ import annotations

import io
import json
import os
import queue
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from fedfew.studies import execution, worker, worker_main
from fedfew.studies import worker as module
from fedfew.studies.folder import RunFolder
from fedfew.studies.worker import Worker
from fedfew.training.settings import Settings
from tests.data import layouts
from tests.studies.small import made, study
from tests.studies.test_runner import run_study


class ExitedError(Exception):
    """The process would have ended here."""


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> None:
    def _exit(code: int) -> None:
        raise ExitedError(code)

    monkeypatch.setattr(os, "_exit", _exit)


def one(root: Path, events: list[dict[str, Any]]) -> Worker:
    return Worker(root, keep_models=False, code="abc", workers=1, send=events.append)


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["event"] for event in events]


@pytest.mark.usefixtures("exits")
def test_a_worker_that_is_stopped_while_it_loads_ends_at_once(tmp_path, monkeypatch):
    events: list[dict[str, Any]] = []
    worker, codes = one(tmp_path, events), []

    def load(settings: Settings) -> None:
        with pytest.raises(ExitedError) as exited:
            worker.stop()
        codes.append(exited.value.args)
        raise ValueError("loading goes on")

    monkeypatch.setattr(module, "make_federation", load)
    worker.make("key", Settings())
    assert codes == [(0,)]
    worker.stop()  # it no longer loads: it would end after its round
    worker.make("another", Settings())  # and loads nothing any more
    assert codes == [(0,)]
    assert kinds(events) == ["loading", "failed", "loading", "stopped"]


@pytest.mark.usefixtures("exits")
@pytest.mark.parametrize(("last", "slept"), [('{"stop": true}\n', []), ("", [worker_main.LAST_ROUND])])
def test_only_a_worker_whose_runner_has_died_limits_the_time_of_its_round(last, slept, tmp_path, monkeypatch):
    worker, messages, naps = one(tmp_path, []), queue.SimpleQueue(), []
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"key": "abc"}\n' + last))
    monkeypatch.setattr(worker_main, "time", type("Clock", (), {"sleep": staticmethod(naps.append)}))
    if last:
        worker_main._read_messages(messages, worker)
    else:
        with pytest.raises(ExitedError):
            worker_main._read_messages(messages, worker)
    assert naps == slept
    assert worker.stopping.is_set()
    assert [messages.get(), messages.get()] == [{"key": "abc"}, None]


def test_a_run_whose_costs_cannot_be_counted_is_kept(tmp_path, monkeypatch):
    def fails(*_: Any) -> None:
        raise ZeroDivisionError("no such cost")

    monkeypatch.setattr("fedfew.evaluation.costs.cost", fails)
    (cell,) = made(study(base={"rounds": 1}, rows={"R": {"method": "fedavg"}}), tmp_path)
    run = RunFolder.of(tmp_path, cell.key).result["run"]
    assert run["cost"] is None
    assert "the costs of a round could not be counted: ZeroDivisionError: no such cost" in run["notes"]


HANGS = """
import sys, threading
import fedfew.studies.worker as worker
from fedfew.studies import worker_main
def hang(settings):
    print("hangs", file=sys.stderr, flush=True)
    threading.Event().wait()

worker.make_federation = hang
worker_main.main(sys.argv[1:])
"""


def test_lists_of_columns_reach_the_worker_as_they_were_planned():
    planned = Settings(dataset="ward.csv", input=("age", "height"), label=("ill", "old"))
    sent = {"key": "abc", "settings": asdict(planned), "candidates": [asdict(planned)], "values": [{}]}
    received = worker_main._arguments(json.loads(json.dumps(sent)))
    assert received["settings"] == planned
    assert received["candidates"] == [planned]
    assert {worker.data_of(planned): "loaded once"}[worker.data_of(received["settings"])] == "loaded once"


@pytest.mark.deploy
@pytest.mark.parametrize("stop", ["asked", "runner died"])
def test_a_worker_that_hangs_while_it_loads_ends_nevertheless(stop, tmp_path):
    given = {"root": str(tmp_path), "keep_models": False, "code": "abc", "workers": 1, "threads": 1}
    words = [sys.executable, "-c", HANGS, json.dumps(given)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        try:
            job = {"key": "abc", "settings": asdict(Settings()), "candidates": [], "values": []}
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            assert "hangs\n" in iter(process.stderr.readline, "")
            if stop == "asked":
                process.stdin.write('{"stop": true}\n')
                process.stdin.flush()
            else:
                process.stdin.close()
            assert process.wait(120) == 0
        finally:
            process.kill()


@pytest.mark.deploy
def test_a_worker_decodes_many_images(tmp_path, monkeypatch):
    """So many that processes are started for it, from within a worker that has threads."""
    monkeypatch.setenv("FEDFEW_CACHE", str(tmp_path / "cache"))
    files = [layouts.picture(value, (4, 4)) for value in range(8)]
    columns = {"image": layouts.images([files[i % 8] for i in range(10_240)]), "label": [i % 2 for i in range(10_240)]}
    data = layouts.write(tmp_path / "pictures.parquet", columns, {"label": ["a", "b"]})
    found = study(
        columns={"iid": {"dataset": str(data), "partition": "iid"}},
        rows={"FedAvg": {"method": "fedavg"}},
        base={"rounds": 1, "sample": None},
    )
    prepared, report, heard = run_study(found, tmp_path / "study")
    assert (len(report.done), report.failed, heard.count("done")) == (1, {}, 1)
    assert "decoded in threads" not in (prepared.folder / execution.LOG).read_text()
