"""Progress of training: a bar on a terminal or in a notebook, a few plain lines elsewhere. rich is imported when it is shown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

from fedfew.util.spelling import counted, number

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars

    from fedfew.training.on_round import OnRound, Progress

LARGE = 1e6  # losses from here are written with a power of ten
MOST_LINES = 20


@contextmanager
def shown(wanted: bool | None, label: str, others: Sequence[OnRound]) -> Iterator[Sequence[OnRound]]:
    """What is to be called after every round: the others, and what shows a bar while the block lasts.

    wanted: None shows one in a terminal or notebook, if no other function is called.
    """
    if not (is_interactive() and not others if wanted is None else wanted):
        yield others
        return
    from rich.console import Console

    with display(Console(stderr=True)) as bars:
        yield [*others, bars.run(label)]


def is_interactive() -> bool:
    return sys.stderr.isatty() or "ipykernel" in sys.modules


class Display(Protocol):
    """Shows one run after the other."""

    def run(self, label: str) -> Callable[[Progress], None]:
        """Begin to show a run; what is returned is to be called after every round."""


def _has_bars(console: Console) -> bool:
    """A notebook needs ipywidgets for a bar that moves."""
    return find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal


@contextmanager
def display(console: Console, runs: int = 1) -> Iterator[Display]:
    """A bar where the console can show one, else plain lines."""
    if not _has_bars(console):
        yield _Lines(console, max(1, MOST_LINES // runs))
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn  # loads slowly, and --help needs none
    from rich.progress import Progress as Bars

    bar = Bars(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}"),
        console=console,
        transient=True,
    )
    with bar:
        yield _Bars(bar, runs)


class _Lines:
    def __init__(self, console: Console, lines_per_run: int) -> None:
        self.console = console
        self.lines = lines_per_run
        self.told: set[str] = set()  # runs of one display share many of their events: each is shown once

    def run(self, label: str) -> Callable[[Progress], None]:
        def on_round(state: Progress) -> None:
            for event in _new(state.events, self.told):
                self.console.print(event, style="yellow", markup=False, highlight=False, soft_wrap=True)
            if state.round * self.lines // state.rounds > (state.round - 1) * self.lines // state.rounds:
                self.console.print(
                    f"{label}: round {state.round}/{state.rounds}  {_numbers(state)}", soft_wrap=True, highlight=False
                )

        return on_round


class _Bars:
    def __init__(self, bar: Bars, runs: int) -> None:
        self.bar = bar
        self.runs = runs
        self.begun = 0
        self.told: set[str] = set()

    def run(self, label: str) -> Callable[[Progress], None]:
        self.begun += 1
        before = f"{self.begun}/{self.runs} " if self.runs > 1 else ""
        task = self.bar.add_task(before + label, total=None, numbers="getting ready …")
        first: list[int] = []

        def on_round(state: Progress) -> None:
            first[:] = first or [state.round - 1]
            for event in _new(state.events, self.told):
                self.bar.console.print(event, style="yellow", markup=False, highlight=False)
            left = state.seconds / (state.round - first[0]) * (state.rounds - state.round)
            numbers = f"{_numbers(state)}  {_duration(left)} left"
            self.bar.update(task, total=state.rounds, completed=state.round, numbers=numbers)
            if state.done:
                self.bar.remove_task(task)
                rounds = counted(state.rounds, "round")
                line = f"[green]✓[/green] [bold]{label}[/bold]  {rounds}  {_numbers(state)}  {_duration(state.seconds)}"
                self.bar.console.print(line, highlight=False)

        return on_round


def _new(events: Sequence[str], told: set[str]) -> list[str]:
    """Those of the events that were not told before, and what happened in a round: that is of one run."""
    new = [event for event in dict.fromkeys(events) if event not in told or event.startswith("round ")]
    told.update(new)
    return new


def _numbers(state: Progress) -> str:
    scores = [
        f"{name} {number(value, '.1%')}"
        for name, value in (("served", state.served), ("adapted", state.adapted))
        if value is not None
    ]
    return "  ".join([f"loss {number(state.loss, '.3f' if state.loss < LARGE else '.3g')}", *scores])


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
