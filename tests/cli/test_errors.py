"""Errors are one paragraph, unless a traceback was asked for."""

from __future__ import annotations

import subprocess

import pytest
from typer.testing import CliRunner

import fedfew
from fedfew.cli import app
from tests.cli.small import ENVIRONMENT, PROGRAM, SMALL
from tests.helpers import call, refused

pytestmark = pytest.mark.usefixtures("here")


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
