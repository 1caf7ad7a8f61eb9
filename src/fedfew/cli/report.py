"""``fedfew report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedfew.cli import errors, places, runfolder
from fedfew.studies.folder import is_study
from fedfew.util.files import check_writable, write_atomically

EXAMPLES = """[bold]Examples[/bold]

[cyan]fedfew report runs/digits-fedfew-0[/cyan]   writes runs/digits-fedfew-0/report.html
[cyan]fedfew report runs/digits-fedfew-0 -o report.html[/cyan]
[cyan]fedfew report runs/digits-fedfew-0 --open[/cyan]   and shows it in the browser
[cyan]fedfew report studies/table1[/cyan]   of a study: its tables, figures, learning curves and runs
[cyan]fedfew watch runs/digits-fedfew-0[/cyan]   the page of a run while it is training
"""
LARGEST = 5_000_000  # bytes that a page is meant to stay under


@errors.readable
def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN|STUDY", help="The folder of a run or of a study.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="HTML", help="The file to write (report.html in the folder).")
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
) -> None:
    """One page about a run or a study, to look at and to pass on.

    A single HTML file that needs no network: learning curves, every client, which client uses which model and how that changed,
    the weights α and w round by round, labels, fairness, costs, settings, and how to repeat the run. It holds scores and counts
    of every client, and no samples. Of a study: its tables, figures, learning curves and runs.
    """
    place = output or folder / "report.html"
    if place.suffix not in (".html", ".htm"):
        raise ValueError(f"--output must name a file that ends in .html, not {place}")
    if output is not None:
        check_writable(output)
    if is_study(folder):
        from fedfew.studies import page

        text = page.html(folder)
    else:
        import fedfew.report

        runfolder.check_run(folder)
        text = fedfew.report.html(folder)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(place, text)
    size = place.stat().st_size
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"Report: [bold]{places.shown(place)}[/bold] ({max(0.01, size / 1e6):.2f} MB)")
    if size > LARGEST:
        console.print(f"note: more than {LARGEST / 1e6:.0f} MB, which browsers may be slow to show", style="yellow")
    if open_it:
        typer.launch(place.resolve().as_uri())
