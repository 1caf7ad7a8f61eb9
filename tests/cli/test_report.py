"""``fedfew report`` and what a run keeps for it; the mistakes of ``report`` and ``watch``."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import typer

import fedfew
from fedfew.cli import run, runfiles
from fedfew.federation import Samples
from fedfew.training import run_files
from fedfew.training.from_settings import make_federation
from fedfew.training.on_round import Progress
from fedfew.training.resolve import resolve
from tests.helpers import call, federation, linear
from tests.report.unpacked import unpacked

SMALL = ["--rounds", "3", "--clients", "4", "--device", "cpu", "--engine", "stacked", "--models", "2"]


def refused(*words: str) -> str:
    return " ".join(call(*words, code=2).stderr.split())


pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs") / "mine"
    call("run", *SMALL, "--folder", str(place))
    return place


def data_of(path: Path) -> dict:
    return json.loads(path.read_text().split('id="data">')[1].split("</script>")[0])


def test_a_run_becomes_one_file(folder: Path, here: Path) -> None:
    said = call("report", str(folder), "-o", "pages/mine.html").stdout
    assert said.startswith("Report: pages/mine.html (0.")
    document = data_of(here / "pages" / "mine.html")
    assert document["run"]["folder"] == "mine"
    assert document["absent"] == {}  # label counts and costs are in the folder
    batches = np.ceil(unpacked(document["clients"]["train"]) / 10)
    assert document["costs"]["steps"] == pytest.approx(2 * batches.mean())  # both models, one epoch
    assert "macro_f1" in document["final"]
    assert document["labels"]["classes"] == list("0123456789")
    assert "rounds: 3" in document["reproduction"]["steps"][0]["text"]


def test_the_file_goes_to_the_folder_and_can_be_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(typer, "launch", opened.append)
    call("report", str(folder), "--open")
    assert opened == [(folder / "report.html").as_uri()]
    assert (folder / "report.html").exists()


def test_a_very_large_page_is_remarked_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedfew.cli.report.LARGEST", 1000)
    assert "note: more than 0 MB" in call("report", str(folder), "-o", "x.html").stdout


def test_mistakes_are_answered_kindly(folder: Path, here: Path) -> None:
    assert "there is no folder nothing" in refused("report", "nothing")
    assert "must name a file that ends in .html, not x.pdf" in refused("report", str(folder), "-o", "x.pdf")
    assert f"holds 1 of them; give one: {folder}" in refused("report", str(folder.parent))
    (here / "empty").mkdir()
    assert "empty is not the folder of a run or a study: it has no round-NNNNNN in it" in refused("report", "empty")
    (here / "runs" / "mine").mkdir(parents=True)
    (here / "runs" / "mine" / "config.yaml").write_text("rounds: 3")
    assert "the newest run is runs/mine" in refused("report", "nothing")
    (here / "runs" / "mine" / "progress.json").write_text('{"round": 1, "rounds": 3, "state": "running"}')
    assert "without a checkpoint yet: 'fedfew watch runs/mine'" in refused("report", "runs/mine")
    (here / "file").touch()
    assert "file is a file; give the folder of a run" in refused("watch", "file")


def test_watch_can_open_the_browser(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(typer, "launch", opened.append)

    def stopped(self: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedfew.report.page.server.Server.serve_forever", stopped)
    said = call("watch", str(folder), "--port", "0", "--open").stdout
    assert len(opened) == 1
    assert f"is shown at {opened[0]} " in said
    assert said.endswith("Ended.\n")


def test_help_teaches() -> None:
    for command in ("report", "watch"):
        text = call(command, "--help").stdout
        assert "Examples" in text
        assert f"fedfew {command} runs/" in text


# -- what a run keeps --------------------------------------------------------------------------------------------------------


def test_label_counts_are_the_clients_own(tmp_path: Path) -> None:
    whole = federation()
    runfiles.write_labels(tmp_path, whole.take([2, 0]))
    found = run_files.labels(tmp_path)
    assert found is not None
    for row, client in enumerate((2, 0)):
        assert found[row].tolist() == torch.bincount(whole.train.of(client)[1], minlength=3).tolist()
    assert run_files.labels(tmp_path / "nothing") is None


def test_label_counts_of_many_clients_and_classes_are_compact(tmp_path: Path) -> None:
    clients, classes, each = 10_000, 200, 60
    y = torch.arange(clients * each) % classes
    count = torch.full((clients,), each)
    samples = Samples(torch.zeros(len(y), 1), y, count.cumsum(0) - count, count, each)
    runfiles.write_labels(tmp_path, fedfew.Federation(samples, samples, classes, torch.arange(clients)))
    assert (tmp_path / runfiles.LABELS).stat().st_size < 200_000
    found = run_files.labels(tmp_path)
    assert found is not None
    assert found.sum() == clients * each
    assert found[1].nonzero()[0].tolist() == list(range(60, 120))


def test_costs_are_not_counted_where_that_takes_much_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = {"model": linear, "method": fedfew.FedAvg(), "local_epochs": 2, "batch_size": 10, "serve": "best"}
    runfiles.write_costs(tmp_path, arguments, federation())
    assert run_files.costs(tmp_path)["model_bytes"] == 4 * (5 * 3 + 3)
    assert run_files.costs(tmp_path)["steps"] == 2 * (3 + 4 + 1 + 4) / 4
    monkeypatch.setattr(runfiles, "LARGEST", 4 * 72 - 1)
    (tmp_path / runfiles.COSTS).unlink()
    runfiles.write_costs(tmp_path, arguments, federation())
    assert run_files.costs(tmp_path) == {}


def told(round: int, served: float | None = 0.5) -> Progress:
    return Progress(round, 3, 0.1, served, 0.6, 1.0, [])


def test_progress_is_written_once_a_second_and_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_files.progress(tmp_path) == {}
    file = runfiles.ProgressFile(tmp_path, seconds=1000)
    file.stopped("too early to say")
    assert run_files.progress(tmp_path) == {}
    file.write(told(1))
    file.write(told(2))
    when = (tmp_path / runfiles.PROGRESS).stat().st_mtime
    monkeypatch.setattr(run_files, "time", SimpleNamespace(time=lambda: when + 7))
    found = run_files.progress(tmp_path)
    assert found.pop("age") == 7
    numbers = {"round": 1, "rounds": 3, "loss": 0.1, "served": 0.5, "adapted": 0.6, "seconds": 1.0}
    assert found == numbers | {"state": "running"}
    file.write(told(3))
    assert (run_files.progress(tmp_path)["round"], run_files.progress(tmp_path)["state"]) == (3, "finished")
    often = runfiles.ProgressFile(tmp_path, seconds=0)
    often.write(told(1))
    often.write(told(2, served=float("nan")))
    assert (run_files.progress(tmp_path)["round"], run_files.progress(tmp_path)["served"]) == (2, None)
    often.stopped("by Ctrl-C")
    assert (run_files.progress(tmp_path)["state"], run_files.progress(tmp_path)["why"]) == ("stopped", "by Ctrl-C")


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [KeyboardInterrupt(), RuntimeError("no disk")], ids=["ctrl-c", "error"])
def test_a_run_that_ends_early_says_so(here: Path, wrong: BaseException) -> None:
    settings = resolve({"rounds": 3, "clients": 4, "engine": "stacked", "device": "cpu", "checkpoint_every": 1}, {})
    clients, _ = make_federation(settings)

    def show(now: Progress) -> None:
        if now.round == 2:
            raise wrong

    with pytest.raises(BaseException):  # noqa: B017, PT011  # which of them is another test's matter
        run.train_in(here / "mine", settings, clients, show, resume=False, go_on="")
    found = run_files.progress(here / "mine")
    assert (found["round"], found["state"]) == (2, "stopped")
    assert found["why"] == ("by Ctrl-C" if isinstance(wrong, KeyboardInterrupt) else "by an error: no disk")


def test_packed_arrays_of_a_real_run_are_its_history(folder: Path, here: Path) -> None:
    call("report", str(folder), "-o", "mine.html")
    document, history = data_of(here / "mine.html"), fedfew.load(folder).history
    assert unpacked(document["maps"]["served"]) == pytest.approx(history.served_accuracy, abs=1e-4)
    assert unpacked(document["maps"]["alpha"]) == pytest.approx(history.alpha)
