"""The runner, with real worker processes: every run is made once, whatever happens to whom."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedfew.studies import execution, runner, store, worker_process, workers
from fedfew.studies.folder import RunFolder, write_plan
from fedfew.studies.job import Job, Report
from fedfew.studies.options import Options
from fedfew.studies.plan import Cell, cells
from fedfew.studies.study import Study
from fedfew.studies.worker_process import WorkerProcess
from fedfew.training.settings import Settings
from fedfew.util.files import folder_locked
from tests.held_method import SPEC, Hold, until
from tests.studies.small import Heard, begun, command, made, outcome, study, text

LONG = {"base": {"rounds": 50, "checkpoint_every": 1, "score_every": 20}, "rows": {"Held": {"method": SPEC}}}


def run_study(found: Study, root: Path, workers: int = 1, **options: Any) -> tuple[execution.Prepared, Report, Heard]:
    heard = Heard()
    prepared = execution.prepare(found, Options(), root, workers=workers, **options)
    report, _ = prepared.run(heard)
    return prepared, report, heard


def in_background(found: Study, root: Path) -> tuple[threading.Thread, list[Report], Heard]:
    """A runner in a thread, to be watched and disturbed from here."""
    heard, reports = Heard(), []
    prepared = execution.prepare(found, Options(), root, workers=1)
    thread = threading.Thread(target=lambda: reports.append(prepared.run(heard)[0]))
    thread.start()
    return thread, reports, heard


@pytest.fixture
def hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hold:
    """Runs of a study are held in their fourth round."""
    made = Hold(tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Cell]:
    """A long run that nobody disturbed: what the disturbed ones must come to."""
    root = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", Hold(root).environment["PYTHONPATH"])
        prepared, report, _ = run_study(study(**LONG), root)
    assert not report.failed
    return root, prepared.cells[0]


def in_the_middle(hold: Hold, root: Path, key: str) -> int:
    """Wait until the run is held, and has a checkpoint; the process that makes it."""
    hold.wait()
    assert list((root / "runs" / key).glob("round-*"))
    return begun(root, key)[-1]


def ended(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


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
def test_a_worker_that_is_killed_is_replaced_and_its_run_ends_as_if_nothing_had_been(tmp_path, undisturbed, hold):
    root, cell = undisturbed
    thread, reports, _ = in_background(study(**LONG), tmp_path)
    os.kill(in_the_middle(hold, tmp_path, cell.key), signal.SIGKILL)
    hold.go_on()
    thread.join()
    assert reports[0].done == [cell.key]
    assert len(set(begun(tmp_path, cell.key))) == 2
    assert outcome(tmp_path, cell.key) == outcome(root, cell.key)


@pytest.mark.slow
def test_a_runner_that_is_killed_leaves_what_the_next_one_goes_on_with(tmp_path, undisturbed, hold):
    root, cell = undisturbed
    file = tmp_path / "tiny.yaml"
    file.write_text(text(**LONG))
    first = command(file, tmp_path, "--workers", "1")
    worker = in_the_middle(hold, tmp_path, cell.key)
    first.kill()
    first.wait()
    hold.go_on()
    until(lambda: ended(worker))
    assert not RunFolder.of(tmp_path, cell.key).finished  # the worker noticed, and stopped
    prepared, report, _ = run_study(study(**LONG), tmp_path)
    assert (list(prepared.new), report.done) == ([cell.key], [cell.key])
    assert outcome(tmp_path, cell.key) == outcome(root, cell.key)


@pytest.mark.slow
def test_ctrl_c_stops_at_a_rounds_end_and_says_how_to_go_on(tmp_path, undisturbed, hold):
    root, cell = undisturbed
    file = tmp_path / "tiny.yaml"
    file.write_text(text(**LONG))
    first = command(file, tmp_path, "--scale", "1")
    in_the_middle(hold, tmp_path, cell.key)
    first.send_signal(signal.SIGINT)
    assert first.stdout is not None
    assert any("stopping: runs end with their round" in line for line in first.stdout)
    hold.go_on()
    _, err = first.communicate(timeout=600)
    assert first.returncode == 130, err
    assert f"Stopped with 1 run left. To continue: fedfew study run {file} --folder {tmp_path}" in err.replace("\n", " ")
    assert list((tmp_path / "runs" / cell.key).glob("round-*"))
    run_study(study(**LONG), tmp_path)
    assert outcome(tmp_path, cell.key) == outcome(root, cell.key)


def test_a_second_ctrl_c_kills(tmp_path, monkeypatch):
    """A worker in a long round hears of nothing; the runner does not wait for it."""
    slow = """
import sys, time
print('{"event": "ready"}', flush=True)
sys.stdin.readline()
print('{"event": "round", "key": "abc"}', flush=True)
time.sleep(3600)
"""
    monkeypatch.setattr(sys, "executable", _script(tmp_path, slow))

    class Interrupts(Heard):
        def on_event(self, worker: int, job: Job, event: dict[str, Any]) -> None:
            os.kill(os.getpid(), signal.SIGINT)

        def stopping(self) -> None:
            super().stopping()
            os.kill(os.getpid(), signal.SIGINT)

    heard = Interrupts()
    report = runner.run(tmp_path, [Job("abc", "slow", Settings())], heard, workers=1, code="", log=tmp_path / "log")
    assert (report.stopped, report.left, heard.stops) == (True, ["abc"], 1)


def _script(folder: Path, program: str) -> str:
    """A program in the place of Python, whatever it is asked to run."""
    path = folder / "python"
    path.write_text(f"#!{sys.executable}\n{program}\n")
    path.chmod(0o755)
    return str(path)


def test_a_run_that_kills_its_process_again_and_again_has_failed(tmp_path, monkeypatch):
    dies = 'import os, sys; print(\'{"event": "ready"}\', flush=True); sys.stdin.readline(); os.kill(os.getpid(), 9)'
    monkeypatch.setattr(sys, "executable", _script(tmp_path, dies))
    report = runner.run(tmp_path, [Job("abc", "x", Settings())], Heard(), workers=1, code="", log=tmp_path / "log")
    assert "its process died 3 times (signal 9, SIGKILL); the usual reason is too little memory" in report.failed["abc"]
    assert RunFolder.of(tmp_path, "abc").error["kind"] == "Crashed"


def test_workers_that_never_start_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", _script(tmp_path, "raise SystemExit(3)"))
    with pytest.raises(RuntimeError, match=r"ended 3 times before its first run \(exit code 3\); .*log may say why"):
        runner.run(tmp_path, [Job("abc", "x", Settings())], Heard(), workers=1, code="", log=tmp_path / "log")


MAKES_RUNS = """
import json, sys
print('{"event": "ready"}', flush=True)
for line in sys.stdin:
    print(json.dumps({"event": "done", "key": json.loads(line)["key"]}), flush=True)
"""


def test_a_worker_that_is_killed_before_its_first_run_is_replaced(tmp_path, monkeypatch):
    first_dies = f"""
import os, pathlib
try:
    pathlib.Path({str(tmp_path / "started")!r}).mkdir()
except FileExistsError:
    pass
else:
    os.kill(os.getpid(), 9)
{MAKES_RUNS}"""
    monkeypatch.setattr(sys, "executable", _script(tmp_path, first_dies))
    jobs = [Job(key, key, Settings()) for key in "ab"]
    report = runner.run(tmp_path, jobs, Heard(), workers=1, code="", log=tmp_path / "log")
    assert (sorted(report.done), report.failed) == (["a", "b"], {})


def test_a_worker_that_never_starts_leaves_the_work_to_the_others(tmp_path, monkeypatch):
    start = WorkerProcess.start

    for name, program in (("first", "raise SystemExit(3)"), ("second", MAKES_RUNS)):
        (tmp_path / name).mkdir()
        _script(tmp_path / name, program)

    def start_only_the_second(number, arguments, log, events):
        monkeypatch.setattr(sys, "executable", str(tmp_path / ("second" if number else "first") / "python"))
        return start(number, arguments, log, events)

    monkeypatch.setattr(WorkerProcess, "start", start_only_the_second)
    jobs = [Job(key, key, Settings()) for key in "abc"]
    report = runner.run(tmp_path, jobs, Heard(), workers=2, code="", log=tmp_path / "log")
    assert (sorted(report.done), report.failed) == (["a", "b", "c"], {})


class SlowClock(Heard):
    """The clock of the runner stands still, but for so many seconds after each round."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        super().__init__()
        self.seconds, self.now = seconds, 0.0
        for module in (runner, worker_process):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))

    def on_event(self, worker: int, job: Job, event: dict[str, Any]) -> None:
        if event["event"] == "round":
            self.now += self.seconds


def test_a_run_that_hangs_fails_at_the_time_limit_and_the_others_go_on(tmp_path, monkeypatch):
    hangs = """
import json, sys, time
print('{"event": "ready"}', flush=True)
for line in sys.stdin:
    key = json.loads(line)["key"]
    if key == "hangs":
        print(json.dumps({"event": "round", "key": key}), flush=True)
        time.sleep(3600)
    print(json.dumps({"event": "done", "key": key}), flush=True)
"""
    monkeypatch.setattr(sys, "executable", _script(tmp_path, hangs))
    jobs = [Job("hangs", "x", Settings(), seconds=9.0), Job("works", "y", Settings())]
    heard = SlowClock(monkeypatch, 0.6)
    report = runner.run(tmp_path, jobs, heard, workers=1, code="", log=tmp_path / "log", time_limit=0.5)
    assert report.done == ["works"]
    assert "no round was finished within the time limit of 0.5 s" in report.failed["hangs"]
    assert RunFolder.of(tmp_path, "hangs").error["kind"] == "TimeLimit"


def test_rounds_that_are_finished_in_time_have_no_limit_together(tmp_path, monkeypatch):
    slow = """
import json, sys
print('{"event": "ready"}', flush=True)
key = json.loads(sys.stdin.readline())["key"]
for _ in range(5):
    print(json.dumps({"event": "round", "key": key}), flush=True)
print(json.dumps({"event": "done", "key": key}), flush=True)
"""
    monkeypatch.setattr(sys, "executable", _script(tmp_path, slow))
    job, heard = Job("slow", "x", Settings()), SlowClock(monkeypatch, 0.9)
    report = runner.run(tmp_path, [job], heard, workers=1, code="", log=tmp_path / "log", time_limit=1.0)
    assert (report.done, report.failed, heard.now) == (["slow"], {}, 4.5)


@pytest.mark.slow
def test_a_file_in_the_working_folder_does_not_take_the_place_of_a_module(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in ("queue", "torch", "yaml"):
        Path(f"{name}.py").write_text("import pathlib\npathlib.Path('imported').touch()\n")
    _, report, _ = run_study(study(rows={"R": {"method": "fedavg"}}), tmp_path)
    assert (len(report.done), report.failed) == (1, {})
    assert not Path("imported").exists()


DAMAGES = {
    "empty": b"",
    "half": b"{",
    "a list": b"[]",
    "null": b"null",
    "nothing in it": b"{}",
    "wrong shape": b'{"run": 1, "clients": [], "rounds": []}',
    "wrong value": b'{"run": {"served_mean": "good"}, "clients": [], "rounds": []}',
    "wrong client": b'{"run": {}, "clients": [3], "rounds": []}',
    "not text": b"\xff\xfe\x00",
    "nested": b"[" * 100_000,
}


@pytest.fixture(scope="module")
def two_finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Study, list[Cell]]:
    root = tmp_path_factory.mktemp("damaged")
    found = study(rows={"R": {"method": "fedavg"}, "S": {"method": "fedprox"}})
    return root, found, made(found, root)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_result_blocks_nothing(two_finished, damage):
    root, found, (first, second) = two_finished
    result = RunFolder.of(root, first.key).path / "result.json"
    intact = result.read_bytes()
    result.write_bytes(damage)
    try:
        results = store.collect(root, write_plan(root / "tiny", found.text, "scale 1", [first, second], {})[0].cells)
        assert results.runs["status"].to_pylist() == ["failed", "done"]
        assert "result.json is damaged" in results.runs["error"][0].as_py()
        prepared = execution.prepare(found, Options(), root, workers=1)
        assert (list(prepared.new), list(prepared.damaged), list(prepared.done)) == ([first.key], [first.key], [second.key])
        assert prepared.estimate.seconds[first.key] is not None
    finally:
        result.write_bytes(intact)


@pytest.mark.slow
def test_a_run_whose_result_is_damaged_is_made_again(tmp_path):
    found = study(rows={"R": {"method": "fedavg"}})
    run_study(found, tmp_path)
    key = cells(found)[0].key
    before = outcome(tmp_path, key)
    result = RunFolder.of(tmp_path, key).path / "result.json"
    result.write_bytes(b"{")
    _, report, _ = run_study(found, tmp_path)
    assert report.done == [key]
    assert outcome(tmp_path, key) == before
    assert (result.parent / "damaged-result.json").read_bytes() == b"{"


@pytest.mark.slow
def test_two_runners_on_one_folder_make_each_run_once(tmp_path, hold):
    changes = {"seeds": 8, "base": {"rounds": 20}, "rows": {"Held": {"method": SPEC}}}
    file = tmp_path / "tiny.yaml"
    file.write_text(text(**changes))
    found = study(**changes)
    other = command(file, tmp_path, "--workers", "1")
    hold.wait()
    thread, reports, _ = in_background(found, tmp_path)
    hold.go_on()
    thread.join()
    out, err = other.communicate(timeout=600)
    assert other.returncode == 0, err
    keys = [cell.key for cell in cells(found)]
    assert len(keys) == 8
    assert [len(begun(tmp_path, key)) for key in keys] == [1] * 8
    assert all(RunFolder.of(tmp_path, key).finished for key in keys)
    assert "8/8" in out
    assert sorted(reports[0].done) == sorted(keys)


@pytest.mark.slow
def test_a_run_that_another_runner_holds_is_waited_for_and_picked_up(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "CHECK_AGAIN", 0.1)
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
    assert "started again from round 0" in (tmp_path / "tiny" / "workers.log").read_text()
    assert RunFolder.of(tmp_path, key).result["run"]["lr"] == cells(found)[0].settings.lr != 0.5


# -- who does what -----------------------------------------------------------------------------------------------------------


def order(jobs: list[Job], workers: int) -> list[list[str]]:
    """What each of so many workers would do, each taking a job in turn."""
    runner_ = runner._Runner(Path(), list(jobs), Heard(), lambda: None, {}, sys.stderr)
    runner_.workers = {n: WorkerProcess(n, subprocess.Popen(["true"], stdin=subprocess.PIPE, text=True)) for n in range(workers)}
    taken: list[list[str]] = [[] for _ in range(workers)]
    for turn in range(len(jobs)):
        worker = runner_.workers[turn % workers]
        job = runner_._next_job(worker)
        worker.jobs, worker.data = {job.key: job}, runner.data_of(job.settings)
        taken[turn % workers].append(job.label)
    for worker in runner_.workers.values():
        worker.process.communicate()
    return taken


def test_workers_keep_their_data_and_take_the_longest_first():
    def job(label: str, clients: int, seconds: float) -> Job:
        return Job(label, label, Settings(clients=clients), seconds)

    jobs = [job("a1", 1, 1), job("a2", 1, 2), job("b1", 2, 5), job("b9", 2, 9), job("a3", 1, 3), job("b2", 2, 2)]
    assert order(jobs, 1) == [["b9", "b1", "b2", "a3", "a2", "a1"]]
    assert order(jobs, 2) == [["b9", "b1", "b2"], ["a3", "a2", "a1"]]


def test_how_many_workers(monkeypatch, tmp_path):
    monkeypatch.setattr(workers, "cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert workers.default_workers("cpu") == 8
    assert [workers.threads(count) for count in (1, 3, 8, 9)] == [8, 2, 1, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert [workers.threads(count) for count in (1, 8)] == [2, 1]
    monkeypatch.setattr("fedfew.util.devices.device_named", lambda name: type("D", (), {"type": "cuda"}))
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert workers.default_workers("cuda") == 1
    (tmp_path / "control").touch()
    assert workers.default_workers("cuda") == workers.MPS_WORKERS > 1
