"""The runner, with real worker processes: every run is made once, whatever happens to whom."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fedfew.studies import execution, runner
from fedfew.studies.folder import RunFolder
from fedfew.studies.plan import Cell, Options, cells
from fedfew.studies.study import Study
from fedfew.training.settings import Settings
from fedfew.util.files import folder_locked
from tests.studies.small import Heard, begun, command, outcome, study, text, until

LONG = {"base": {"rounds": 250, "checkpoint_every": 5, "score_every": 100}, "rows": {"FedFew": {"method": "fedfew"}}}


def run_study(found: Study, root: Path, workers: int = 1, **options: Any) -> tuple[execution.Prepared, runner.Report, Heard]:
    heard = Heard()
    prepared = execution.prepare(found, Options(), root, workers=workers, **options)
    report, _ = prepared.run(heard)
    return prepared, report, heard


def in_background(found: Study, root: Path) -> tuple[threading.Thread, list[runner.Report], Heard]:
    """A runner in a thread, to be watched and disturbed from here."""
    heard, reports = Heard(), []
    prepared = execution.prepare(found, Options(), root, workers=1)
    thread = threading.Thread(target=lambda: reports.append(prepared.run(heard)[0]))
    thread.start()
    return thread, reports, heard


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Cell]:
    """A long run that nobody disturbed: what the disturbed ones must come to."""
    root = tmp_path_factory.mktemp("undisturbed")
    prepared, report, _ = run_study(study(**LONG), root)
    assert not report.failed
    return root, prepared.cells[0]


def in_the_middle(root: Path, key: str) -> int:
    """Wait until the run has a checkpoint; the process that makes it."""
    until(lambda: list((root / "runs" / key).glob("round-*")))
    assert not RunFolder.of(root, key).finished
    return begun(root, key)[-1]


def test_runs_are_made_once_and_never_again(tmp_path):
    found = study(seeds=2)
    prepared, report, heard = run_study(found, tmp_path)
    keys = [cell.key for cell in prepared.cells]
    assert sorted(report.done) == sorted(keys)
    assert (report.failed, report.left, report.stopped) == ({}, [], False)
    assert heard.count("done") == 4
    assert heard.count("round") >= 4
    assert not list(tmp_path.glob("runs/*/round-*"))  # checkpoints are large
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/*")}
    again, report, heard = run_study(found, tmp_path)
    assert (len(again.done), again.new, report.done, heard.events) == (4, {}, [], [])
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/*")} == before
    assert all(len(begun(tmp_path, key)) == 1 for key in keys)


@pytest.mark.slow
def test_a_failing_run_is_recorded_and_the_others_go_on(tmp_path):
    rows = {
        "diverges": {"method": "fedavg", "model": "mlp", "lr": 1e30},
        "too many": {"method": "fedavg", "sample": 5000},  # digits has 1797 rows
        "works": {"method": "fedavg"},
    }
    found = study(rows=rows)
    prepared, report, _ = run_study(found, tmp_path)
    keys = {cell.row: cell.key for cell in prepared.cells}
    assert report.done == [keys["works"]]
    assert "training diverged in round" in report.failed[keys["diverges"]]
    assert "sample is 5000, but there are only 1797 rows" in report.failed[keys["too many"]]
    error = RunFolder.of(tmp_path, keys["diverges"]).error
    assert error["kind"] == "DivergedError"
    assert "Traceback" in error["trace"]
    # Not tried again, unless asked for.
    again, report, _ = run_study(found, tmp_path)
    assert (set(again.failed), again.new) == ({keys["diverges"], keys["too many"]}, {})
    once_more, report, _ = run_study(found, tmp_path, retry_failed=True)
    assert set(once_more.new) == set(report.failed) == {keys["diverges"], keys["too many"]}
    assert len(begun(tmp_path, keys["diverges"])) == 2


@pytest.mark.slow
def test_a_worker_that_is_killed_is_replaced_and_its_run_ends_as_if_nothing_had_been(tmp_path, undisturbed):
    root, cell = undisturbed
    thread, reports, _ = in_background(study(**LONG), tmp_path)
    os.kill(in_the_middle(tmp_path, cell.key), signal.SIGKILL)
    thread.join()
    assert reports[0].done == [cell.key]
    assert len(set(begun(tmp_path, cell.key))) == 2
    assert outcome(tmp_path, cell.key) == outcome(root, cell.key)


@pytest.mark.slow
def test_a_runner_that_is_killed_leaves_what_the_next_one_goes_on_with(tmp_path, undisturbed):
    root, cell = undisturbed
    file = tmp_path / "tiny.yaml"
    file.write_text(text(**LONG))
    first = command(file, tmp_path, "--workers", "1")
    worker = in_the_middle(tmp_path, cell.key)
    first.kill()
    first.wait()
    until(lambda: not Path(f"/proc/{worker}").exists() or "Z" in Path(f"/proc/{worker}/stat").read_text().split()[2])
    assert not RunFolder.of(tmp_path, cell.key).finished  # the worker noticed, and stopped
    prepared, report, _ = run_study(study(**LONG), tmp_path)
    assert (list(prepared.new), report.done) == ([cell.key], [cell.key])
    assert outcome(tmp_path, cell.key) == outcome(root, cell.key)


@pytest.mark.slow
def test_ctrl_c_stops_at_a_rounds_end_and_says_how_to_go_on(tmp_path, undisturbed):
    root, cell = undisturbed
    file = tmp_path / "tiny.yaml"
    file.write_text(text(**LONG))
    first = command(file, tmp_path, "--scale", "1")
    in_the_middle(tmp_path, cell.key)
    first.send_signal(signal.SIGINT)
    out, err = first.communicate(timeout=30)
    assert first.returncode == 130, err
    assert "stopping: runs end with their round" in out
    assert f"Stopped, 1 runs are left. To go on: fedfew study run {file} --folder {tmp_path}" in err.replace("\n", " ")
    assert list((tmp_path / "runs" / cell.key).glob("round-*"))
    run_study(study(**LONG), tmp_path)
    assert outcome(tmp_path, cell.key) == outcome(root, cell.key)


def test_a_second_ctrl_c_kills(tmp_path, monkeypatch):
    """A worker in a long round hears of nothing; the runner does not wait for it."""
    heard, reports = Heard(), []
    slow = 'import sys; print(\'{"event": "ready"}\', flush=True); sys.stdin.readline(); import time; time.sleep(600)'
    monkeypatch.setattr(runner.sys, "executable", _script(tmp_path, slow))
    job = runner.Job("abc", "slow", Settings())

    def interrupt() -> None:
        for _ in range(2):
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    reports = runner.run(tmp_path, [job], heard, workers=1, code="", log=tmp_path / "log")
    assert (reports.stopped, reports.left, heard.stops) == (True, ["abc"], 1)


def _script(folder: Path, program: str) -> str:
    """A program in the place of Python, whatever it is asked to run."""
    path = folder / "python"
    path.write_text(f"#!{sys.executable}\n{program}\n")
    path.chmod(0o755)
    return str(path)


def test_a_run_that_kills_its_process_again_and_again_has_failed(tmp_path, monkeypatch):
    dies = 'import os, sys; print(\'{"event": "ready"}\', flush=True); sys.stdin.readline(); os.kill(os.getpid(), 9)'
    monkeypatch.setattr(runner.sys, "executable", _script(tmp_path, dies))
    report = runner.run(tmp_path, [runner.Job("abc", "x", Settings())], Heard(), workers=1, code="", log=tmp_path / "log")
    assert "its process died 3 times (signal 9, SIGKILL); too little memory" in report.failed["abc"]
    assert RunFolder.of(tmp_path, "abc").error["kind"] == "Died"


def test_a_worker_that_cannot_even_start_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(runner.sys, "executable", _script(tmp_path, "raise SystemExit(3)"))
    with pytest.raises(RuntimeError, match=r"a worker process ended before it had anything to do \(exit code 3\); .*log may say"):
        runner.run(tmp_path, [runner.Job("abc", "x", Settings())], Heard(), workers=1, code="", log=tmp_path / "log")


@pytest.mark.slow
def test_two_runners_on_one_folder_make_each_run_once(tmp_path):
    file = tmp_path / "tiny.yaml"
    file.write_text(text(seeds=4, base={"rounds": 20}))
    found = study(seeds=4, base={"rounds": 20})
    other = command(file, tmp_path, "--workers", "1")
    until(lambda: (tmp_path / "tiny" / "plan.json").exists())
    _, report, _ = run_study(found, tmp_path)
    out, err = other.communicate(timeout=100)
    assert other.returncode == 0, err
    keys = [cell.key for cell in cells(found)]
    assert len(keys) == 8
    assert [len(begun(tmp_path, key)) for key in keys] == [1] * 8
    assert all(RunFolder.of(tmp_path, key).finished for key in keys)
    assert "8/8" in out
    assert sorted(report.done) == sorted(keys)


def test_a_run_that_another_runner_holds_is_waited_for_and_picked_up(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "LOOK_AGAIN", 0.1)
    found = study()
    first, second = cells(found)
    with folder_locked(RunFolder.of(tmp_path, first.key).path):
        thread, reports, heard = in_background(found, tmp_path)
        until(lambda: RunFolder.of(tmp_path, second.key).finished and heard.count("busy") > 1)
        assert not RunFolder.of(tmp_path, first.key).finished
        RunFolder.of(tmp_path, first.key).finish({"run": {}, "clients": [], "rounds": []}, keep_models=False)  # by the other
    thread.join()
    assert sorted(reports[0].done) == sorted([first.key, second.key])
    assert begun(tmp_path, first.key) == []


@pytest.mark.slow
def test_models_are_kept_where_asked_for_and_those_of_another_run_are_thrown_away(tmp_path):
    found = study(rows={"R": {"method": "fedavg"}})
    other = study(rows={"R": {"method": "fedavg", "lr": 0.5}})
    prepared = execution.prepare(other, Options(), tmp_path, workers=1)
    prepared.run(Heard(), keep_models=True)
    assert (tmp_path / "runs" / prepared.cells[0].key / "round-000003" / "state.safetensors").is_file()
    key = cells(found)[0].key
    (tmp_path / "runs" / prepared.cells[0].key).rename(tmp_path / "runs" / key)
    (tmp_path / "runs" / key / "result.json").unlink()
    _, report, _ = run_study(found, tmp_path)
    assert report.done == [key]
    assert "begun anew" in (tmp_path / "tiny" / "workers.log").read_text()
    assert RunFolder.of(tmp_path, key).result["run"]["lr"] == cells(found)[0].settings.lr != 0.5


# -- who does what -----------------------------------------------------------------------------------------------------------


def order(jobs: list[runner.Job], hands: int) -> list[list[str]]:
    """What each of so many workers would do, each taking a job in turn."""
    made = runner._Runner(Path(), list(jobs), Heard(), lambda: None, {}, sys.stderr)
    made.hands = {n: runner._Hand(n, subprocess.Popen(["true"], stdin=subprocess.PIPE, text=True)) for n in range(hands)}
    taken: list[list[str]] = [[] for _ in range(hands)]
    for turn in range(len(jobs)):
        hand = made.hands[turn % hands]
        job = made._next(hand)
        hand.job, hand.data = job, runner.data_of(job.settings)
        taken[turn % hands].append(job.label)
    for hand in made.hands.values():
        hand.process.communicate()
    return taken


def test_workers_keep_their_data_and_take_the_longest_first():
    def job(label: str, clients: int, seconds: float) -> runner.Job:
        return runner.Job(label, label, Settings(clients=clients), seconds)

    jobs = [job("a1", 1, 1), job("a2", 1, 2), job("b1", 2, 5), job("b9", 2, 9), job("a3", 1, 3), job("b2", 2, 2)]
    assert order(jobs, 1) == [["b9", "b1", "b2", "a3", "a2", "a1"]]
    assert order(jobs, 2) == [["b9", "b1", "b2"], ["a3", "a2", "a1"]]


def test_how_many_workers(monkeypatch, tmp_path):
    monkeypatch.setattr(runner, "cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert runner.default_workers("cpu") == 8
    assert [runner.threads(workers) for workers in (1, 3, 8, 9)] == [8, 2, 1, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert [runner.threads(workers) for workers in (1, 8)] == [2, 1]
    monkeypatch.setattr("fedfew.training.api.device_named", lambda name: type("D", (), {"type": "cuda"}))
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert runner.default_workers("cuda") == 1
    (tmp_path / "control").touch()
    assert runner.default_workers("cuda") == runner.SIDE_BY_SIDE > 1
