"""Errors are one paragraph, unless a traceback was asked for."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

import fedfew
from fedfew.cli import app
from tests.cli.small import SMALL
from tests.helpers import refused

pytestmark = pytest.mark.usefixtures("here")


def test_an_unforeseen_error_is_a_paragraph_too_unless_debugging(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oh\nno")

    monkeypatch.setattr(fedfew, "train", broken)
    assert "ZeroDivisionError: oh no ('fedfew --debug …' shows where)" in refused("run", *SMALL, "--models", "2")
    assert isinstance(CliRunner().invoke(app, ["--debug", "run", *SMALL, "--models", "2"]).exception, ZeroDivisionError)
