"""How a study is shown while it goes."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from fedfew.studies import display as display_module
from fedfew.studies.display import Lines, Tally, display
from fedfew.studies.job import Job
from fedfew.training.settings import Settings

JOBS = {name: Job(name, f"label {name}", Settings()) for name in "abc"}


def round_(number: int) -> dict:
    return {"event": "round", "round": number, "rounds": 10, "served": 0.5, "adapted": None, "seconds": 3.0}


def tally() -> Tally:
    return Tally(total=5, before=2, seconds={"a": 10.0, "b": 30.0, "c": 60.0})


def test_what_is_left_and_for_how_long(monkeypatch):
    told = tally()
    monkeypatch.setattr(display_module, "time", SimpleNamespace(monotonic=lambda: told.begun + 100))
    assert (told.left, told.eta) == (3, None)
    told.update(0, JOBS["a"], round_(5))
    assert told.eta == pytest.approx(100 * 95 / 5)  # 5 of 100 estimated seconds took 100
    told.update(0, JOBS["a"], {"event": "done"})
    told.update(1, JOBS["b"], {"event": "failed", "error": "no"})
    assert (told.done, told.failed, told.left, told.at_work) == (1, 1, 1, {})
    assert told.eta == pytest.approx(100 * 60 / 40)


def shown(terminal: bool) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=140, color_system=None)
    with display(console, tally()) as watcher:
        assert isinstance(watcher, Lines)
        watcher.on_event(0, JOBS["a"], {"event": "loading"})
        watcher.on_event(0, JOBS["a"], round_(5))
        if terminal:
            console.print(watcher)
        watcher.on_event(0, JOBS["a"], {"event": "done"})
        watcher.on_event(0, JOBS["b"], {"event": "busy"})
        watcher.on_event(0, JOBS["b"], {"event": "busy"})
        watcher.on_event(0, JOBS["b"], {"event": "done"})  # by the other
        watcher.on_event(0, JOBS["c"], {"event": "failed", "error": "[lr] is too high"})
        watcher.stopping()
        watcher.on_event(0, JOBS["a"], {"event": "stopped"})
    return console.file.getvalue()


def test_scores_that_are_not_finite_are_not_written_as_python_does():
    assert display_module.numbers({"served": float("-inf"), "adapted": float("nan")}) == "served −∞  adapted –"


@pytest.mark.parametrize("terminal", [False, True])
def test_a_line_for_every_run_that_ends(terminal):
    text = shown(terminal)
    assert "✓ 3/5 label a  10 rounds  served 50.0%  3 s" in text
    assert text.count("label b  another runner makes it") == 1
    assert "✓ 4/5 label b  by another runner" in text
    assert "✗ 5/5 label c  [lr] is too high" in text
    assert "stopping: runs end with their round" in text
    assert "label a  stopped after round 5" in text


def test_on_a_terminal_the_workers_can_be_seen():
    text = shown(True)
    assert "2/5 done" in text
    assert "3 left" in text
    assert "round 5/10" in text
    assert "to go" in text
    console = Console(file=io.StringIO(), force_terminal=True, width=140)
    with display(console, tally()) as watcher:
        watcher.on_event(0, JOBS["a"], {"event": "loading"})
        console.print(watcher)
    assert "loading data" in console.file.getvalue()
