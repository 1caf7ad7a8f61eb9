"""Errors are one paragraph, unless a traceback was asked for."""

from __future__ import annotations

import io
import os
import subprocess
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

import fedfew
from fedfew.cli import app, errors
from tests.cli.small import ENVIRONMENT, PROGRAM, SMALL
from tests.helpers import call, refused

pytestmark = pytest.mark.usefixtures("here")


@pytest.mark.slow
def test_debug_shows_the_traceback_of_an_expected_error_too() -> None:
    command = [*PROGRAM, "--debug", "data", "show", "nope"]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == 1
    assert "Traceback (most recent call last)" in done.stderr
    assert "there is no data set or path 'nope'" in done.stderr
    for words in (["data", "show", "nope"], ["show", "nowhere"]):
        assert isinstance(CliRunner().invoke(app, ["--debug", *words]).exception, ValueError)
        assert call(*words, code=2).stderr.count("\n") == 1


def test_an_unforeseen_error_is_a_paragraph_too_unless_debugging(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oh\nno")

    monkeypatch.setattr(fedfew, "train", broken)
    assert "ZeroDivisionError: oh no ('fedfew --debug …' shows where)" in refused("run", *SMALL, "--models", "2")
    assert isinstance(CliRunner().invoke(app, ["--debug", "run", *SMALL, "--models", "2"]).exception, ZeroDivisionError)


@pytest.mark.slow
def test_a_reader_that_stops_gets_no_error() -> None:
    command = [*PROGRAM, "methods", "--json"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (errors.READER_GONE, "")


def test_another_broken_pipe_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise BrokenPipeError("a worker is gone")

    monkeypatch.setattr(fedfew, "train", broken)
    assert "a worker is gone" in refused("run", *SMALL, "--models", "2")


def test_a_warning_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    errors.show_warning(UserWarning("a file is damaged"), UserWarning, "here.py", 3)
    assert capsys.readouterr().err == "Warning: a file is damaged\n"


def test_settings_are_written_as_flags() -> None:
    Path("a.csv").write_text("site,x,y\n" + "".join(f"{i % 2},{i * i},{'ab'[i % 3 % 2]}\n" for i in range(12)) + "0,1,\n")
    show = ["data", "show", "a.csv"]
    assert "Name one with --label …" in refused(*show, "--label", "z")
    assert "there is no column 'sit'; did you mean 'site'?" in refused(*show, "--label", "y", "--skip-bad", "--client", "sit")
    assert "by:y: the column is the label" in refused(*show, "--label", "y", "--skip-bad", "--client", "y")
    assert "row 13: the label is missing (--skip-bad leaves such rows out)" in refused(*show, "--label", "y")
    shown = " ".join(call(*show, "--label", "y", "--skip-bad", "--clients", "2").stderr.split())
    assert "divided among 2 clients by partition dirichlet:0.5; --client … names a column of clients" in shown
    assert "divided among" not in call(*show, "--label", "y", "--skip-bad", "--client", "site").stderr
    twice = refused(*show, "--label", "x", "--label", "site")
    assert "which may be amounts or classes: give --task regression, or one label per sample" in twice
    twice = refused(*show, "--label", "y", "--skip-bad", "--client", "site", "--partition", "dirichlet:0.5")
    assert "--client site and --partition dirichlet:0.5 contradict each other" in twice
    assert errors.as_flags("load(data, label=…, client=…)") == "load(data, label=…, client=…)"


@pytest.mark.parametrize(
    ("file", "named"),
    [("ro/.partial-1-a/state.json", "ro"), ("ro/.partial-1-a", "ro"), ("nodir/p.csv", "nodir/p.csv"), (None, None)],
)
def test_an_error_of_the_system_names_what_the_user_named(file: str | None, named: str | None) -> None:
    error = OSError(30, "Read-only file system", file)
    assert errors._words(error) == (f"{named}: Read-only file system" if named else "[Errno 30] Read-only file system")


def test_a_paragraph_is_wrapped_between_words_on_a_terminal_alone() -> None:
    for terminal, lines in ((True, ["one two", "three"]), (False, ["one two three"])):
        console = Console(file=io.StringIO(), width=9, force_terminal=terminal, color_system=None)
        errors.paragraph(console, Text("one two three"))
        assert [line.rstrip() for line in console.file.getvalue().splitlines()] == lines  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", [["compare", "--methods", "local,fedavg"], ["advise-k", "--ks", "1-2", "--seeds", "1"]])
def test_ctrl_c_between_two_runs_says_how_to_continue(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    train, started = fedfew.train, []

    def stopped_before_the_second(*args: object, **kwargs: object) -> object:
        started.append(kwargs["folder"])
        if len(started) == 2:
            raise KeyboardInterrupt
        return train(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(fedfew, "train", stopped_before_the_second)
    said = call(*command, *SMALL, "--folder", "r", code=130).stderr.replace("\n", " ")
    assert f"Stopped. To continue: fedfew {command[0]} --resume --folder r" in said
    started[:] = ["in the first run, there is nothing to continue"]
    assert "To continue" not in call(*command, *SMALL, "--folder", "other", code=130).stderr
