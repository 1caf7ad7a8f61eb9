"""Flags: those that all training commands share, and those of the chosen method."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer

from fedfew.training.settings import FIELDS, RECOMMENDED, TYPES, Settings

Command = TypeVar("Command", bound=Callable[..., Any])

Config = Annotated[Path | None, typer.Option(help="YAML file with the same names; flags override it.")]
Folder = Annotated[Path | None, typer.Option(help="Folder of the run (default: a new one below runs/).")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in --folder; no other flag is needed.")]
Track = Annotated[
    list[str] | None,
    typer.Option(help="Log to a tracking tool: tensorboard, mlflow:URI or wandb:PROJECT. Can be repeated.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and progress on stderr.")]


def takes_settings(
    *without: str, only: Collection[str] = tuple(TYPES), defaults: Mapping[str, str] | None = None
) -> Callable[[Command], Command]:
    """Give a command a flag for every field of Settings (or for those in ``only``), but for those named.

    defaults: in words, where the command has another than Settings. The command reads them with :func:`given`; its own
    parameters must come first.
    """

    def decorate(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True)
        options = [
            _option(f.name, f.metadata["panel"], f.metadata["about"], (defaults or {}).get(f.name))
            for f in FIELDS
            if f.name in only and f.name not in without
        ]
        parameters = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        command.__signature__ = own.replace(parameters=[*parameters, *options])  # type: ignore[attr-defined]  # a function can have one
        command.__annotations__ = {p.name: p.annotation for p in [*parameters, *options]} | {"return": None}
        return command

    return decorate


def given(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the flags of Settings that the user gave."""
    found = {name: value for name, value in flags.items() if name in TYPES and value not in (None, [])}
    for name, value in found.items():
        if isinstance(value, list) and len(value) == 1 and str in get_args(TYPES[name]):  # a label, which may be several
            found[name] = value[0]
    return found


def of_the_method(arguments: list[str]) -> dict[str, str | None]:
    """The flags that are none of a command's own: ``--mu 0.1``, ``--mu=0.1``, ``--normalise``. Text by name; None: no value."""
    values: dict[str, str | None] = {}
    rest = list(arguments)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        if not flag.startswith("--"):
            hint = f" (a file of settings: --config {flag})" if flag.endswith((".yaml", ".yml")) else ""
            raise ValueError(f"{flag!r} is not expected here: settings are flags, --name value{hint}")
        if not equals and rest and not rest[0].startswith("--"):
            value, equals = rest.pop(0), "="
        values[flag[2:].replace("-", "_")] = value if equals else None
    return values


def complete_method(incomplete: str) -> list[str]:
    from fedfew.methods import METHODS

    return [name for name in METHODS if name.startswith(incomplete)]


def complete_methods(incomplete: str) -> list[str]:
    """The last of a comma-separated list."""
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in ["all", *complete_method("")] if name.startswith(last)]


def complete_workload(incomplete: str) -> list[str]:
    from fedfew.bench.workloads import WORKLOADS

    return [name for name in ["all", *WORKLOADS] if name.startswith(incomplete)]


def _complete_dataset(incomplete: str) -> list[str]:
    from fedfew.data import names

    return [name for name in names() if name.startswith(incomplete)]


def _complete_model(incomplete: str) -> list[str]:
    from fedfew.models import MODELS

    return [name for name in MODELS if name.startswith(incomplete)]


_COMPLETIONS = {"method": complete_method, "dataset": _complete_dataset, "model": _complete_model}


@cache  # the commands share most of their flags
def _option(name: str, panel: str, about: str, in_words: str | None) -> inspect.Parameter:
    default = in_words or getattr(Settings, name)
    shown = "recommended for the data set" if name in RECOMMENDED["digits"] else default
    option = typer.Option(
        help=about if shown in (None, "") else f"{about} [dim](default: {shown})[/dim]",
        rich_help_panel=panel,
        autocompletion=_COMPLETIONS.get(name),
    )
    hint: Any = Annotated
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint[_kind(TYPES[name]) | None, option]
    )


def _kind(hint: Any) -> Any:
    """What typer is to read: of a choice its text, which is checked with all other settings; of a tuple a repeated flag."""
    if tuple[str, ...] in get_args(hint):
        return list[str]
    return str if get_origin(hint) is Literal else hint
