"""What cannot be written is refused before anything is trained or computed."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

import fedfew
from tests.cli.small import TINY
from tests.helpers import refused

IN_A_FILE = "note.txt/below/"  # no folder can be made there, not even by root


@pytest.mark.parametrize(
    "command",
    [
        ["run", *TINY, "--folder", IN_A_FILE],
        ["compare", *TINY, "--folder", IN_A_FILE],
        ["compare", *TINY, "-o", IN_A_FILE + "a.png"],
        ["advise-k", *TINY, "--folder", IN_A_FILE],
        ["advise-k", *TINY, "-o", IN_A_FILE + "a.png"],
        ["demo", "-o", IN_A_FILE + "a.png"],
        ["demo", "-o", "folder.png"],
        ["study", "run", "quick", "--folder", IN_A_FILE],
        ["bench", "--quick", "--append", IN_A_FILE + "figures.jsonl"],
        ["export", "run", "-o", IN_A_FILE],
        ["report", "run", "-o", IN_A_FILE + "report.html"],
        ["select", "run", "--data", "mine.npz", "-o", IN_A_FILE + "model.safetensors"],
        ["predict", "run", "--data", "mine.npz", "-o", IN_A_FILE + "predictions.csv"],
    ],
    ids=lambda command: " ".join(word for word in command if word.islower() or word.startswith("-"))[:40],
)
def test_it_is_refused_at_once(command: list[str], here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "note.txt").write_text("a file, not a folder")
    (here / "folder.png").mkdir()
    for name in (
        "cli.run.make_federation",
        "data.load",
        "bench.measure.measure",
        "training.api.train",
    ):
        monkeypatch.setattr(f"fedfew.{name}", lambda *_, **__: pytest.fail("it went on"))
    before = sorted(here.rglob("*"))
    answer = refused(*command)
    place, why = ("folder.png", "Is a directory") if "folder.png" in command else ("note.txt", "Not a directory")
    assert f"cannot be written: {place}: {why}" in answer
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["export", "run", "-o", "out/e"], "out"),
        (["data", "prepare", "digits", "-o", "out/d.fed"], "out/d.fed"),
        (["report", "run"], "run/report.html"),
    ],
)
def test_a_disk_that_is_full_is_named_and_nothing_is_left_half_written(command: list[str], named: str, here: Path) -> None:
    """A limit on the size of files stops writing as a full disk does."""
    fedfew.train(fedfew.data.digits(3), "mlp", "fedavg", rounds=1).save("run")
    (here / "run" / "report.html").write_text("the page of before")
    (here / "out").mkdir()
    before = sorted(here.rglob("*"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8000, limits[1]))
    try:
        answer = refused(*command)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert answer == f"Error: {named}: File too large"
    assert sorted(here.rglob("*")) == before
    assert (here / "run" / "report.html").read_text() == "the page of before"


def test_python_refuses_a_folder_before_the_first_round(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("a file, not a folder")
    rounds: list[int] = []
    with pytest.raises((OSError, ValueError), match=r"note\.txt"):
        fedfew.train(
            fedfew.data.digits(3), rounds=1, folder=tmp_path / "note.txt" / "x", on_round=lambda state: rounds.append(state.round)
        )
    assert rounds == []
