"""Runs of a study in one stack: which, how they end, and what is recorded of them."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from fedfew.studies import execution, packing, runner, tables
from fedfew.studies import worker as worker_module
from fedfew.studies.folder import RunFolder
from fedfew.studies.job import Job
from fedfew.studies.options import Options
from fedfew.studies.plan import cells
from fedfew.studies.worker import Worker
from fedfew.training.settings import Settings
from tests.helpers import call
from tests.studies.made_up import Book
from tests.studies.small import Heard, begun, study, text
from tests.studies.test_runner import _script

STACKED = {"base": {"engine": "stacked", "rounds": 3}}


def worker(root: Path, events: list[dict[str, Any]]) -> Worker:
    return Worker(root, keep_models=False, code="abc", workers=1, send=events.append)


def packed(root: Path, planned: list[Any], at_round: int | None = None) -> list[dict[str, Any]]:
    """The events of a pack of these runs; at_round: all are stopped after it."""
    events: list[dict[str, Any]] = []
    made = worker(root, events)

    def send(event: dict[str, Any]) -> None:
        events.append(event)
        if event["event"] == "round" and event["round"] == at_round:
            made.stopping.set()

    made.send = send
    made.make_pack([{"key": cell.key, "settings": cell.settings} for cell in planned])
    return events


def scores(root: Path, key: str) -> list[float]:
    result = RunFolder.of(root, key).result
    assert result is not None
    return [row[name] for row in result["clients"] for name in ("served_loss", "adapted_loss", "served_score")]


def test_runs_may_differ_in_what_does_not_change_a_clients_step():
    base = Settings()
    names = {f.name for f in fields(Settings)}
    assert names >= packing.OWN
    same = replace(base, seed=3, data_seed=3, method="fedavg", method_settings={}, rounds=7, participation=0.5, server_lr=0.1)
    assert packing.pack_of(base) == packing.pack_of(same)
    for other in ({"lr": 0.2}, {"model": "cnn"}, {"dataset": "mnist"}, {"batch_size": 3}, {"device": "cpu"}, {"sample": 9}):
        assert packing.pack_of(base) != packing.pack_of(replace(base, **other)), other
    cosine = replace(base, schedule="cosine")
    assert packing.pack_of(cosine) != packing.pack_of(replace(cosine, rounds=7))  # another learning rate in every round


def test_tuned_runs_other_engines_and_frozen_parameters_are_made_alone():
    assert packing.pack_of(Settings(), tuned=True) is None
    assert packing.pack_of(Settings(engine="threaded")) is None
    assert packing.pack_of(Settings(freeze="body")) is None


def test_default_size(monkeypatch):
    assert packing.default_size("cpu") == 1
    monkeypatch.setattr("fedfew.util.devices.device_named", lambda name: type("Device", (), {"type": "cuda"}))
    assert packing.default_size("auto") == packing.ON_A_GPU


def test_a_pack_gives_what_the_runs_give_alone_and_records_that_it_was_one(tmp_path):
    planned = cells(study(seeds=1, **STACKED), Options())
    together, alone = tmp_path / "together", tmp_path / "alone"
    events = packed(together, planned)
    assert sorted(e["key"] for e in events if e["event"] == "done") == sorted(cell.key for cell in planned)
    made = worker(alone, [])
    for cell in planned:
        made.make(cell.key, cell.settings)
        assert scores(together, cell.key) == pytest.approx(scores(alone, cell.key), abs=1e-6)
    rows = [RunFolder.of(together, cell.key).result["run"] for cell in planned]
    assert [row["packed"] for row in rows] == [2, 2]
    assert RunFolder.of(alone, planned[0].key).result["run"]["packed"] == 1
    assert all(row["seconds"] > row["rounds"] * row["seconds_per_round"] > 0 for row in rows)


@pytest.mark.slow
def test_a_run_that_fails_leaves_the_pack_and_the_others_go_on(tmp_path):
    good, bad = cells(study(seeds=1, **STACKED), Options())
    bad = replace(bad, settings=replace(bad.settings, sample=5000))  # digits has 1797 rows
    diverging = replace(good, settings=replace(good.settings, model="mlp", lr=1e30))
    events = packed(tmp_path, [bad, diverging, good])
    ends = {e["key"]: e["event"] for e in events if e["event"] in ("done", "failed")}
    assert ends == {bad.key: "failed", diverging.key: "failed", good.key: "done"}
    assert "there are only 1797 rows" in RunFolder.of(tmp_path, bad.key).error["message"]
    assert RunFolder.of(tmp_path, diverging.key).error["kind"] == "DivergedError"


def test_a_pack_that_is_stopped_goes_on_from_its_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setattr(worker_module, "EVENT_EVERY", 0.0)
    planned = cells(study(seeds=1, base={"engine": "stacked", "rounds": 6, "checkpoint_every": 2}), Options())
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    events = packed(stopped, planned, at_round=3)
    assert [e["event"] for e in events if e["event"] != "round"].count("stopped") == 2
    assert all(list(RunFolder.of(stopped, cell.key).path.glob("round-*")) for cell in planned)
    rounds = [e["round"] for e in packed(stopped, planned) if e["event"] == "round"]
    assert min(rounds) > 3
    packed(whole, planned)
    for cell in planned:
        assert len(begun(stopped, cell.key)) == 2
        assert scores(stopped, cell.key) == scores(whole, cell.key)


def test_federations_of_the_last_pack_are_dropped(tmp_path):
    planned = cells(study(seeds=3, rows={"FedAvg": {"method": "fedavg"}}, base={"rounds": 1, "engine": "stacked"}), Options())
    made = worker(tmp_path, [])
    made.make_pack([{"key": cell.key, "settings": cell.settings} for cell in planned[:2]])
    assert len(made._data) == 2
    made.make(planned[2].key, planned[2].settings)
    assert len(made._data) == 1


# -- the runner --------------------------------------------------------------------------------------------------------------

PACKS = """
import json, os, sys
print('{"event": "ready"}', flush=True)
for line in sys.stdin:
    message = json.loads(line)
    keys = [run["key"] for run in message.get("pack", [message])]
    with open(LOG, "a") as log:
        print(*keys, file=log)
    if "bad" in keys:
        os.kill(os.getpid(), 9)
    for key in keys:
        print(json.dumps({"event": "done", "key": key}), flush=True)
"""


def jobs(*keys: str, **settings: Any) -> list[Job]:
    return [Job(key, key, Settings(**settings), seconds=len(keys) - i) for i, key in enumerate(keys)]


def messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: list[Job], workers: int = 1, **options: Any):
    """What the workers were asked for, and the report."""
    log = tmp_path / "packs"
    monkeypatch.setattr(sys, "executable", _script(tmp_path, PACKS.replace("LOG", repr(str(log)))))
    report = runner.run(tmp_path, made, Heard(), workers=workers, code="", log=tmp_path / "log", **options)
    return [line.split() for line in log.read_text().splitlines()], report


def test_jobs_that_fit_go_to_a_worker_together(tmp_path, monkeypatch):
    made = [*jobs("a", "b", "c", "d"), *jobs("other", lr=0.3), Job("tuned", "t", Settings(), 0.1, (Settings(),), ({},))]
    asked, report = messages(tmp_path, monkeypatch, made, pack=3)
    assert asked == [["a", "b", "c"], ["d"], ["other"], ["tuned"]]
    assert len(report.done) == 6


def test_a_pack_whose_process_dies_is_made_run_by_run(tmp_path, monkeypatch):
    asked, report = messages(tmp_path, monkeypatch, jobs("a", "bad", "c"), pack=3)
    assert asked[0] == ["a", "bad", "c"]
    assert sorted(asked[1:]) == [["a"], ["bad"], ["bad"], ["bad"], ["c"]]
    assert sorted(report.done) == ["a", "c"]
    assert "its process died 3 times" in report.failed["bad"]


def test_workers_divide_the_runs_that_fit():
    made = runner._Runner(Path(), jobs("b", "c", "d"), Heard(), lambda: None, {}, sys.stderr, pack=10)
    made.workers = {number: type("Worker", (), {"jobs": {}})() for number in range(2)}
    assert [job.key for job in made._packed_with(jobs("a")[0])] == ["b"]  # of four runs, each worker gets two


def test_command_says_what_is_packed(tmp_path):
    file = tmp_path / "tiny.yaml"
    file.write_text(text(seeds=2, base={"engine": "stacked"}))
    out = call("study", "run", str(file), "--folder", str(tmp_path), "--dry-run", "--pack", "3").output
    assert "4 of them in packs of up to 3: the runs of a pack share one stack, and seconds are each run's share" in out
    assert execution.prepare(study(seeds=2, **STACKED), Options(), tmp_path).packs is None  # on a CPU, unless asked for


def test_packed_seconds_are_no_measure_of_runs_alone(tmp_path):
    planned = cells(study(seeds=1, **STACKED), Options())
    packed(tmp_path, planned)
    prepared = execution.prepare(study(seeds=2, **STACKED), Options(), tmp_path, workers=1)
    assert prepared.estimate.from_runs == 0


def test_tables_of_seconds_say_which_are_shares():
    book = Book()
    for seed, packed_with in enumerate((1, 5, 5)):
        run = book.add("FedAvg", seed)
        book.scored(run, [0.5, 0.6], [0.5, 0.6])
        run |= {"seconds": 3.0, "packed": packed_with}

    def notes(measure: str) -> str:
        return " ".join(tables.make_tables([{"kind": "methods", "measures": [measure]}], book.results(), book.study)[0].notes)

    assert "Seconds of 2 of 3 runs are shares: they were made in one stack with others." in notes("seconds")
    assert "shares" not in notes("mean")
