"""Progress of training: a bar on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

if TYPE_CHECKING:
    from fedfew.training.loop import Progress as Told

MOST_LINES = 20


class Display(Protocol):
    """Shows one run after the other."""

    def run(self, label: str) -> Callable[[Told], None]:
        """Begin to show a run; what is returned is to be called after every round."""


@contextmanager
def display(console: Console, runs: int = 1) -> Iterator[Display]:
    """A bar where the console is a terminal, else plain lines."""
    if not console.is_terminal:
        yield _Lines(console, max(1, MOST_LINES // runs))
        return
    bar = Progress(
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

    def run(self, label: str) -> Callable[[Told], None]:
        def on_round(told: Told) -> None:
            for event in told.events:
                self.console.print(event, style="yellow", markup=False, highlight=False, soft_wrap=True)
            if told.round * self.lines // told.rounds > (told.round - 1) * self.lines // told.rounds:
                self.console.print(
                    f"{label}: round {told.round}/{told.rounds}  {_numbers(told)}", soft_wrap=True, highlight=False
                )

        return on_round


class _Bars:
    def __init__(self, bar: Progress, runs: int) -> None:
        self.bar = bar
        self.runs = runs
        self.begun = 0

    def run(self, label: str) -> Callable[[Told], None]:
        self.begun += 1
        before = f"{self.begun}/{self.runs} " if self.runs > 1 else ""
        task = self.bar.add_task(before + label, total=None, numbers="getting ready …")
        first: list[int] = []

        def on_round(told: Told) -> None:
            first[:] = first or [told.round - 1]
            for event in told.events:
                self.bar.console.print(event, style="yellow", markup=False, highlight=False)
            left = told.seconds / (told.round - first[0]) * (told.rounds - told.round)
            numbers = f"{_numbers(told)}  {_duration(left)} left"
            self.bar.update(task, total=told.rounds, completed=told.round, numbers=numbers)
            if told.done:
                self.bar.remove_task(task)
                line = f"[green]✓[/green] [bold]{label}[/bold]  {told.rounds} rounds  {_numbers(told)}  {_duration(told.seconds)}"
                self.bar.console.print(line, highlight=False)

        return on_round


def _numbers(told: Told) -> str:
    scores = [f"{name} {value:.1%}" for name, value in (("served", told.served), ("adapted", told.adapted)) if value is not None]
    return "  ".join([f"loss {told.loss:.3f}", *scores])


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
