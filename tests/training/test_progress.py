"""Progress: a bar on a terminal, few plain lines elsewhere."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import subprocess
import time
from typing import Any

import pytest
from rich.console import Console

import fedfew
from fedfew.training import progress
from tests.cli.small import ENVIRONMENT, PROGRAM, SMALL

pytestmark = pytest.mark.usefixtures("here")


@pytest.mark.slow
def test_a_bar_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    shown = subprocess.Popen(
        [*PROGRAM, "compare", *SMALL, "--rounds", "30", "--methods", "local,fedavg", "--folder", "r"],
        stdout=theirs,
        stderr=theirs,
        env=ENVIRONMENT | {"TERM": "xterm"},
    )
    os.close(theirs)
    text = read_all(ours, shown)
    assert shown.wait() == 0, text
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert re.search(r"✓ local +30 rounds +loss [\d.]+ +served [\d.]+% +adapted [\d.]+%", plain), plain
    assert "2/2 fedavg" in plain
    assert "\x1b[" in text


def read_all(terminal: int, process: subprocess.Popen[bytes]) -> str:
    text, end = b"", time.monotonic() + 600
    while time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                piece = os.read(terminal, 65536)
            except OSError:  # closed at the other end
                break
            if not piece:
                break
            text += piece
        elif process.poll() is not None:
            break
    os.close(terminal)
    return text.decode()


def told(round: int, rounds: int, seconds: float = 1.0, events: list[str] | None = None) -> fedfew.Progress:
    return fedfew.Progress(round, rounds, 0.5, None, None, seconds, events or [])


@pytest.mark.parametrize(("loss", "written"), [(2.3456, "2.346"), (123456.0, "123456.000"), (1.8823e28, "1.88e+28")])
def test_a_loss_that_is_enormous_stays_short(loss: float, written: str, capsys: pytest.CaptureFixture[str]) -> None:
    with progress.display(Console()) as display:
        display.run("x")(fedfew.Progress(1, 1, loss, None, None, 1.0, []))
    assert capsys.readouterr().out == f"x: round 1/1  loss {written}\n"


def test_scores_that_are_not_finite_are_not_written_as_python_does(capsys: pytest.CaptureFixture[str]) -> None:
    """R² is −∞ where training diverges, and no number where no client could be scored."""
    with progress.display(Console()) as display:
        display.run("x")(fedfew.Progress(1, 1, float("inf"), float("-inf"), float("nan"), 1.0, []))
    assert capsys.readouterr().out == "x: round 1/1  loss ∞  served −∞  adapted –\n"


def test_plain_lines_are_few_and_events_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.display(Console()) as display:
        on_round = display.run("x")
        for number in range(1, 1001):
            on_round(told(number, 1000, events=["left out"] if number == 3 else []))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 21
    assert lines[0] == "left out"
    assert lines[-1] == "x: round 1000/1000  loss 0.500"


def test_an_event_that_several_runs_share_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.display(Console(), runs=2) as display:
        for label in ("one", "two"):
            display.run(label)(told(1, 1, events=["engine: stacked", f"only {label}"]))
    shown = capsys.readouterr().out
    assert [shown.count(text) for text in ("engine: stacked", "only one", "only two")] == [1, 1, 1]


def test_bars_show_events(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.display(Console(force_terminal=True)) as display:
        on_round = display.run("x")
        on_round(told(5, 6, events=["client 3 left out"]))
        on_round(told(6, 6))
    assert "client 3 left out" in capsys.readouterr().out


def test_the_bar_says_how_long_it_will_take() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with progress.display(console) as bars:
        assert isinstance(bars, progress._Bars)
        bars.run("fedavg")(told(1, 4, seconds=2.0))
        bars.bar.refresh()
    assert "6.0 s left" in console.file.getvalue()  # three rounds


@pytest.mark.parametrize(("seconds", "words"), [(0.04, "0.0 s"), (42.4, "42 s"), (61, "1 min 01 s"), (7261, "2 h 01 min")])
def test_durations(seconds: float, words: str) -> None:
    assert progress._duration(seconds) == words


# -- from Python -------------------------------------------------------------------------------------------------------------


def trained(**settings: Any) -> None:
    data = fedfew.data.load("digits", clients=2, sample=40)
    fedfew.train(data, "linear", "fedavg", rounds=2, engine="sequential", device="cpu", **settings)


def test_without_a_terminal_a_bar_is_shown_only_if_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    assert not progress.is_interactive()
    trained()
    assert capfd.readouterr().err == ""
    trained(progress=True)
    assert "fedavg: round 2/2  loss " in capfd.readouterr().err


@pytest.mark.parametrize(("settings", "shown"), [({}, True), ({"progress": False}, False), ({"on_round": print}, False)])
def test_on_a_terminal_there_is_one_unless_something_else_is_called(
    settings: dict[str, Any], shown: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "is_interactive", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")  # by which rich takes what is captured for a terminal
    trained(**settings)
    assert ("✓" in capfd.readouterr().err) == shown


@pytest.mark.parametrize("widgets", [True, False])
def test_a_notebook_without_widgets_gets_lines(widgets: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "find_spec", lambda name: object() if widgets else None)
    assert progress._has_bars(Console(force_jupyter=True)) == widgets
