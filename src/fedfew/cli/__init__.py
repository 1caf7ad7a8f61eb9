"""The command line: one file per command, each of which parses, calls the library and prints.

A command's file is loaded when the command is called: ``fedfew --help`` needs none of them. Only ``fedfew.__main__`` imports it.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer

from fedfew._version import __version__
from fedfew.cli import errors, help_text

COMMANDS = {  # name: the first sentence of its help, which the list of commands shows
    "run": "Train one run and save it in a folder.",
    "compare": "Train several methods on the same data with several seeds: one table and one plot.",
    "advise-k": "Choose the number of models: train FedFew for several K and recommend one.",
    "show": "Show a run: settings, scores, and one row per client; or, with --classes, one row per class.",
    "report": "One page about a run or a study, to look at and to pass on.",
    "watch": "The page of a run while it is training; it updates by itself.",
    "export": "Export a run's models: safetensors files, and a model card with settings, scores and hashes.",
    "predict": "Predict the classes of new data: raw data in, names out. For other tasks: the numbers, or 0 and 1 per label.",
    "select": "Choose the model that fits new data best: for a site that took no part in the training.",
    "methods": "List the federated methods by family and when to use each, or the settings of one.",
    "demo": "Compare local training, FedAvg and FedFew on rotated digits.",
    "bench": "Measure the engines on this machine: seconds per round, FLOP/s, memory, and agreement of the results.",
}
GROUPS = {
    "data": "Data sets: list, show, prepare.",
    "flower": "Federations on a network, with Flower: init, check, certs, gate, export.",
    "study": "The paper's tables and figures, and your own, at one command each.",
}
METHODS_FLAGS = {"allow_extra_args": True, "ignore_unknown_options": True}  # hyperparameters of the method are flags, too
TAKE_METHODS_FLAGS = ("run", "advise-k", "compare")  # compare: to say where they are given


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedfew {__version__}")
        raise typer.Exit


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


def version() -> None:
    """Show the version."""
    _print_version(True)


def program(only: str | None = None) -> typer.Typer:
    """The program with all of its commands; only: of the others no more than their names and first sentences."""
    app = typer.Typer(
        name="fedfew",
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        suggest_commands=not hasattr(sys.modules.get("click.exceptions"), "NoSuchCommand"),  # a click that has it does so itself
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(main_options)
    app.command()(version)
    for name, summary in COMMANDS.items():
        if only in (None, name):
            _add_command(app, name)
        else:
            app.command(name, help=summary)(_not_loaded)
    for name, summary in GROUPS.items():
        if only in (None, name):
            group = import_module(f"fedfew.cli.{name}").app
            help_text.tidy(group)
            app.add_typer(group, name=name, help=summary)
        else:
            app.command(name, help=summary)(_not_loaded)
    help_text.tidy(app)
    return app


def _add_command(app: typer.Typer, name: str) -> None:
    function = name.replace("-", "_")  # in the file of the same name
    module = import_module(f"fedfew.cli.{function}")
    extra = METHODS_FLAGS if name in TAKE_METHODS_FLAGS else None
    command: Callable[..., Any] = getattr(module, function)
    app.command(name, epilog=getattr(module, "EXAMPLES", None), context_settings=extra)(command)


def _not_loaded() -> None:
    raise AssertionError("this command is only listed")


def __getattr__(name: str) -> typer.Typer:
    """``fedfew.cli.app``: the program with all of its commands."""
    if name != "app":
        raise AttributeError(f"module 'fedfew.cli' has no attribute {name!r}")
    globals()["app"] = program()
    whole: typer.Typer = globals()["app"]
    return whole


def main() -> None:
    """The program ``fedfew``."""
    for stream in (sys.stdout, sys.stderr):  # a terminal that cannot show ± gets a ? rather than a crash
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # the interpreter's own streams have it
    warnings.showwarning = errors.show_warning
    logging.getLogger("fedfew.data").addHandler(logging.NullHandler())  # the commands print notes about data themselves
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    completing = "_FEDFEW_COMPLETE" in os.environ  # by the shell, whose words are elsewhere
    program(None if completing else next(iter(words), ""))()
