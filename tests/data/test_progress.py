"""A bar on terminals only."""

from __future__ import annotations

import pytest


def test_progress_is_for_people(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from fedfew.data.progress import progress

    with progress("decoding", 5000) as advance:
        advance(5000)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with progress("decoding", 5000) as advance:
        advance(5000)
    assert "decoding" in capsys.readouterr().err
