"""The command line: one file per command, each of which parses, calls the library and prints.

Imports everything; only ``fedfew.__main__`` imports it.
"""

from __future__ import annotations

import sys
import warnings
from typing import Annotated

import typer

from fedfew._version import __version__
from fedfew.cli import (
    advise_k,
    bench,
    compare,
    data,
    demo,
    errors,
    export,
    flower,
    help_text,
    methods,
    predict,
    report,
    run,
    select,
    show,
    study,
    watch,
)

app = typer.Typer(
    name="fedfew",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    suggest_commands=not hasattr(sys.modules.get("click.exceptions"), "NoSuchCommand"),  # a click that has it suggests by itself
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedfew {__version__}")
        raise typer.Exit


@app.callback()
def main_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error: fedfew --debug COMMAND …")] = False,
) -> None:
    """Personalised federated learning: few models for many clients.

    Start with [bold]fedfew demo[/bold] (half a minute), then train something of your own:

    [cyan]fedfew run --method fedfew --models 4[/cyan]     one run, saved in a folder
    [cyan]fedfew compare --methods all --seeds 3[/cyan]    a table and a plot
    [cyan]fedfew show runs/digits-fedfew-0[/cyan]          scores of every client
    [cyan]fedfew report runs/digits-fedfew-0[/cyan]        the same as an HTML page
    [cyan]fedfew study run quick[/cyan]                    a table and figures from many runs
    """
    errors.show_tracebacks(debug)


@app.command()
def version() -> None:
    """Show the version."""
    _print_version(True)


METHODS_FLAGS = {"allow_extra_args": True, "ignore_unknown_options": True}  # hyperparameters of the method are flags, too
for module in (run, compare, advise_k, show, report, watch, export, predict, select, methods, demo, bench):
    command = module.__name__.rpartition(".")[2]  # the function in it has the same name
    extra = METHODS_FLAGS if module in (run, advise_k) else None
    add = app.command(command.replace("_", "-"), epilog=getattr(module, "EXAMPLES", None), context_settings=extra)
    add(getattr(module, command))
for name, group in {"data": data.app, "flower": flower.app, "study": study.app}.items():
    app.add_typer(group, name=name)
    help_text.tidy(group)
help_text.tidy(app)


def main() -> None:
    """The program ``fedfew``."""
    for stream in (sys.stdout, sys.stderr):  # a terminal that cannot show ± gets a ? rather than a crash
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # the interpreter's own streams have it
    warnings.showwarning = errors.show_warning
    app()
