"""Docstrings and examples as they are printed on a terminal."""

from __future__ import annotations

import inspect
import re
from typing import Any

import typer
import typer.core
import typer.main


class ArgumentWithHelp(typer.core.TyperArgument):
    """With click 8.5, whose arguments have a help of their own, Typer up to 0.20 loses the one that it is given."""

    def __init__(self, *, help: str | None = None, **others: Any) -> None:
        super().__init__(help=help, **others)
        self.help = help


typer.main.TyperArgument = ArgumentWithHelp  # type: ignore[attr-defined]  # of it Typer makes its arguments


def tidy(app: typer.Typer) -> None:
    """Help of every command of this app: docstrings in paragraphs, examples one per line."""
    for command in app.registered_commands:
        command.help = paragraphs(command.help or inspect.getdoc(command.callback))
        if command.epilog:
            command.epilog = one_per_line(command.epilog)


def paragraphs(text: str | None) -> str:
    """A docstring without markup of reStructuredText, each paragraph on one line for the terminal to wrap."""
    return "\n\n".join(" ".join(plain(paragraph).split()) for paragraph in (text or "").split("\n\n"))


def plain(text: str) -> str:
    """``:meth:`~package.name``` and double backticks become the bare name."""
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"\1", text)
    return text.replace("``", "")


def one_per_line(examples: str) -> str:
    """Typer joins the lines of a paragraph, so each line becomes one."""
    return "\n\n".join(line.strip() for line in examples.splitlines() if line.strip())
