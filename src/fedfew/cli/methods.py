"""``fedfew methods``."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fedfew.cli import errors, flags, help_text
from fedfew.training.own_method import import_method, is_own

if TYPE_CHECKING:
    from fedfew.methods.hyperparameters import Hyperparameter


@errors.readable
def methods(
    name: Annotated[
        str | None, typer.Argument(help="Show the settings of this method.", autocompletion=flags.complete_method)
    ] = None,
    json: flags.Json = False,
) -> None:
    """List the federated methods by family and when to use each, or the settings of one.

    Example: [cyan]fedfew methods fedfew[/cyan]
    """
    from fedfew.methods import METHODS
    from fedfew.methods.hyperparameters import hyper_parameters
    from fedfew.report import tables

    if name is not None:
        if is_own(name):
            import_method(name)
        hyperparameters = hyper_parameters(name)
        tables.print_json({name: _as_values(name, hyperparameters)}) if json else _show_one(name, hyperparameters)
    elif json:
        tables.print_json({method: _as_values(method, hyper_parameters(method)) for method in METHODS})
    else:
        _show_all()


def _show_all() -> None:
    from fedfew.report import tables

    console = Console()
    for family, names in _by_family().items():
        console.print(f"[bold]{family}[/bold]")
        table = Table(box=tables.BOX, pad_edge=False)
        table.add_column("method", min_width=10, no_wrap=True)
        table.add_column("what it does", ratio=1)
        table.add_column("when to use it", ratio=1)
        for name in names:
            table.add_row(f"[bold]{name}[/bold]", escape(_own(name, "summary") or _about(name)), escape(_own(name, "when")))
        console.print(table)
    console.print("'fedfew methods NAME' describes a method and lists its settings.")


def _by_family() -> dict[str, list[str]]:
    from fedfew.methods import METHODS
    from fedfew.methods.base import FAMILIES

    groups = {family: [name for name, cls in METHODS.items() if cls.family == family] for family in FAMILIES}
    return {family: names for family, names in groups.items() if names}


def _own(name: str, line: str) -> str:
    """A line that the method's class gives itself: one that it inherits describes another method."""
    from fedfew.methods import METHODS

    return str(vars(METHODS[name]).get(line, ""))


def _show_one(name: str, hyperparameters: list[Hyperparameter]) -> None:
    from fedfew.methods import METHODS

    console = Console()
    console.print(f"[bold]{name}[/bold]: {escape(_about(name))}\n", highlight=False)
    if _own(name, "when"):
        console.print(f"when to use it: {escape(_own(name, 'when'))}\n", highlight=False)
    console.print(f"served: {METHODS[name].served}\nadapted: {METHODS[name].adapted}\n", highlight=False)
    table = Table.grid(padding=(0, 2, 1, 0))
    table.add_column(no_wrap=True)
    for hyperparameter in hyperparameters:
        about = Text.assemble((_values(hyperparameter), "dim"), "\n", help_text.plain(hyperparameter.about))
        table.add_row(f"[bold]{hyperparameter.flag}[/bold]", about)
    console.print(table)


def _values(of: Hyperparameter) -> str:
    """What a setting may be, and what it is unless it is given."""
    from fedfew.methods.hyperparameters import PUBLISHED
    from fedfew.util.conversion import in_words

    published = "" if of.published == of.default or of == PUBLISHED else f"; with --published {of.published}"
    return f"{in_words(of.hint)}; default {of.default}{published}"


def _about(name: str) -> str:
    """A method's docstring, each paragraph on one line."""
    from fedfew.methods import METHODS

    return help_text.paragraphs(inspect.getdoc(METHODS[name]))


def _as_values(name: str, hyperparameters: list[Hyperparameter]) -> dict[str, Any]:
    from fedfew.methods import METHODS
    from fedfew.util.conversion import in_words

    settings = [
        {
            "name": k.name,
            "value": in_words(k.hint),
            "default": k.default,
            "published": k.published,
            "about": help_text.plain(k.about),
        }
        for k in hyperparameters
    ]
    described = {"family": METHODS[name].family, "summary": _own(name, "summary"), "when": _own(name, "when")}
    return described | {"about": _about(name), "settings": settings}
