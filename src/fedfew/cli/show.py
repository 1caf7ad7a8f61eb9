"""``fedfew show``."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from fedfew.cli import errors, flags, places, runfolder
from fedfew.config import TrainConfig
from fedfew.util.printable import printable, shortened
from fedfew.util.spelling import counted

if TYPE_CHECKING:
    from rich.table import Table

    from fedfew.training.run import Run

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
OwnModel = Annotated[
    str | None, typer.Option(help="module:factory, for a run made with a module of your own; it is imported.", show_default=False)
]
OwnMethod = Annotated[
    str | None,
    typer.Option("--method", help="module:Class, for a run made with a method of your own; it is imported.", show_default=False),
]
OwnLoss = Annotated[
    str | None,
    typer.Option(
        "--loss", help="module:function, for models trained with a loss of your own; it is imported.", show_default=False
    ),
]

MAIN = ("lr", "batch_size", "local_epochs", "optimizer", "seed", "engine")  # settings that are shown in any case


@errors.readable
def show(
    folder: RunFolder,
    png: Annotated[Path | None, typer.Option(help="Write a plot of the learning curves (and weights) to this file.")] = None,
    classes: Annotated[
        bool, typer.Option("--classes", help="Show recall and precision per class, and the confusion matrix.")
    ] = False,
    client: Annotated[
        str | None, typer.Option(help="With --classes: of this client, by name or number (default: all).", show_default=False)
    ] = None,
    model: OwnModel = None,
    json: flags.Json = False,
) -> None:
    """Show a run: settings, scores, and one row per client; or, with --classes, one row per class.

    Example: [cyan]fedfew show runs/digits-fedfew-0 --png curves.png[/cyan]
    """
    from fedfew.report import describe, plots, tables

    run = load(folder, model)
    about, final = runfolder.about_data(folder), runfolder.final_scores(folder, run.round)
    console = Console(stderr=json)
    if classes or client is not None:
        _show_classes(run, client, console, json)
        return
    if png is not None:
        _require_rounds(run)
        plots.run(run, png, about.get("groups"))
        console.print(f"Plot: [bold]{places.shown(png)}[/bold]", soft_wrap=True)
    if json:
        tables.print_json({"folder": str(folder)} | describe(run) | {"data": about, "final": final})
        return
    console.print(_settings(run))
    for event in run.state.events:
        errors.paragraph(console, Text(printable(event), "yellow"))
    _require_rounds(run)
    tables.show(console, tables.run_summary(run, final), tables.clients(run, about))


def _show_classes(run: Run, client: str | None, console: Console, json: bool) -> None:
    from fedfew.report import class_tables, tables

    matrix, names = run.confusion(client), run.class_names
    if json:
        tables.print_json({"client": client} | class_tables.values(matrix, names))
        return
    whose = "all clients" if client is None else f"client {shortened(client)}"
    tables.show(console, class_tables.scores(matrix, names, whose), class_tables.confusion(matrix, names))


def load(folder: Path, model: str | None, method: str | None = None, loss: str | None = None) -> Run:
    """The run in a folder. Nothing that the folder names is imported: code of the user's own comes from the flags alone."""
    import fedfew
    from fedfew.training.own_method import import_method

    if method is not None:
        import_method(method)
    runfolder.check_run(folder)
    return fedfew.load(folder, own_factory(model), own_loss(loss))


def own_factory(model: str | None) -> Any:
    """The factory that ``--model module:factory`` names; None for a model of the package."""
    from fedfew.training.from_settings import find_model

    return find_model(model) if model and ":" in model else None


def own_loss(loss: str | None) -> Any:
    """The function that ``--loss module:function`` names."""
    from fedfew.util.imports import find_function

    return None if loss is None else find_function(loss, "loss")


def _require_rounds(run: Run) -> None:
    if not len(run.history):
        raise ValueError("the run was stopped in its first round, so there is nothing to show yet: continue it (--resume)")


def _settings(run: Run) -> Table:
    from rich.table import Table

    from fedfew.tasks import outputs_in_words

    grid = Table.grid(padding=(0, 2))
    method = dict(run.settings["method"])
    grid.add_row("method", f"[bold]{places.shown(method.pop('name'))}[/bold]")
    data = run.settings["federation"]
    grid.add_row("data", f"{places.shown(data['name'])}: {counted(data['clients'], 'client')}, {outputs_in_words(run.settings)}")
    grid.add_row("round", f"{run.round} of {run.settings['rounds']}")
    defaults = {f.name: f.default for f in fields(TrainConfig)}
    rest = {name: value for name, value in run.settings.items() if name not in ("method", "federation", "rounds")}
    shown = {name: value for name, value in rest.items() if name in MAIN or name not in defaults or value != defaults[name]}
    grid.add_row("settings", f"{_listed(shown)}; all others as by default (--json lists them)")
    if method:
        grid.add_row("of the method", _listed(method))
    return grid


def _listed(settings: dict[str, Any]) -> str:
    return places.shown(", ".join(f"{name} {value}" for name, value in settings.items() if value is not None))
