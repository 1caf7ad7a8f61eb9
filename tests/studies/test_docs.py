"""The page on studies, followed: its commands are run, its study as well, and its questions are asked."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedfew.cli import app
from fedfew.studies.protocol import SWITCHES
from fedfew.studies.study import catalogue

pytestmark = pytest.mark.slow  # every command of the page is run

PAGE = (Path(__file__).parents[2] / "docs" / "studies.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


def commands() -> list[list[str]]:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines]


def call(*words: str) -> str:
    result = CliRunner().invoke(app, list(words), prog_name="fedfew")
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page's study has been run."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "turned.yaml").write_text(next(block for block in blocks("yaml") if block.startswith("name: turned")))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        planned = call("study", "run", "turned.yaml", "--dry-run")
        call("study", "run", "turned.yaml", "--device", "cpu", "--workers", "1", "--only", "turned", "--seeds", "1")
    assert "12 runs: 12 to make" in planned  # two columns, FedAvg once and FedFew twice, two seeds
    return folder


@pytest.fixture(autouse=True)
def inside(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    monkeypatch.setattr("fedfew.data.hub.answers", lambda: False)


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_is_right(words):
    """Long ones are planned only, and what has not been run is not shown."""
    if words[1] == "run":
        words = [*words, *([] if "--dry-run" in words else ["--dry-run"])]
    if words[1:] == ["new", "mine"] or (words[2:3] == ["mine.yaml"] and not Path("mine.yaml").exists()):
        Path("mine.yaml").unlink(missing_ok=True)
        assert "mine.yaml is written" in call("study", "new", "mine")
    elif words[1] == "show":
        assert "turned" in call("study", "show", "turned")
    else:
        assert call(*words)


def test_what_the_page_lists_is_what_there_is():
    for name in catalogue():
        assert f"| `{name}` |" in PAGE
    for switch in SWITCHES:
        assert f"| `{switch.name}` |" in PAGE


def test_the_mistake_is_answered_as_shown(here):
    (here / "wrong.yaml").write_text((here / "turned.yaml").read_text().replace("  models:", "  modles:"))
    result = CliRunner().invoke(app, ["study", "run", "wrong.yaml"])
    shown = next(block for block in blocks("text") if "modles" in block).strip().removeprefix("turned.yaml")
    assert result.exit_code == 2
    assert shown in " ".join(result.stderr.split())


def test_the_folders_are_as_shown(here):
    for name in ("runs.parquet", "clients.parquet", "rounds.parquet", "study.yaml", "plan.json", "workers.log"):
        assert (here / "studies" / "turned" / name).is_file()
        assert name in PAGE


def test_the_questions_are_answered(here, capsys):
    exec(compile(blocks("python")[0], "studies.md", "exec"), {})
    column, row, _ = capsys.readouterr().out.split(maxsplit=2)
    assert column == "turned"
    assert row in ("FedAvg", "FedFew")
    duckdb = pytest.importorskip("duckdb")
    answer = duckdb.sql(blocks("sql")[0]).fetchall()
    assert {(row, point) for row, point, *_ in answer} == {
        ("FedAvg", "{}"),
        ("FedFew", '{"models": 1}'),
        ("FedFew", '{"models": 4}'),
    }
    assert answer == sorted(answer, key=lambda line: -line[2])


def test_the_example_of_a_tuned_study_can_be_planned():
    from fedfew.studies.plan import cells
    from fedfew.studies.study import parse

    (block,) = [block for block in blocks("yaml") if "tune:" in block]
    planned = cells(parse("name: x\ncolumns: {c: {dataset: digits}}\n" + block, "x.yaml"))
    sizes = {(cell.protocol, cell.row): len(cell.candidates) for cell in planned}
    assert sizes == {("fair", "FedAvg"): 0, ("fair", "FedProx"): 0, ("tuned", "FedAvg"): 2, ("tuned", "FedProx"): 4}
