"""What the documentation shows exists: commands and their flags, and names that are imported."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path

import click
import typer

from fedfew.cli import app
from fedfew.methods import METHODS
from fedfew.methods.hyperparameters import hyper_parameters
from fedfew.training.settings import Settings

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "results").rglob("README.md"))]
TAKE_SETTINGS = ("run", "compare", "advise-k")  # their flags are also those of Settings and of methods


def blocks(page: Path, *languages: str) -> list[str]:
    """The fenced blocks of these languages ("": none is named)."""
    fenced = page.read_text(encoding="utf-8").split("\n```")  # text, block, text, block, …
    pairs = (block.partition("\n") for block in fenced[1::2])
    return [text for language, _, text in pairs if language in languages]


def commands(page: Path) -> list[list[str]]:
    """The words of every command of ours in a block, without comments; a trailing backslash continues a line."""
    lines = "\n".join(blocks(page, "", "sh", "console")).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("fedfew ")]


@cache
def of_settings() -> set[str]:
    """The flags of settings and of methods."""
    names = {*Settings.__dataclass_fields__, *(h.name for name in METHODS for h in hyper_parameters(name))}
    return {f"--{prefix}{name.replace('_', '-')}" for name in names for prefix in ("", "no-")}


COMMANDS = typer.main.get_command(app)


def command_and_flags(words: list[str]) -> tuple[str, set[str]]:
    """The path of a command, and the flags that it knows."""
    found, path = COMMANDS, list[str]()
    while isinstance(found, click.Group):
        name, words = words[0], words[1:]
        assert name in found.commands, f"there is no command {' '.join([*path, name])}"
        found, path = found.commands[name], [*path, name]
    flags = {flag for parameter in found.params for flag in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    return " ".join(path), flags | (of_settings() if path[0] in TAKE_SETTINGS else set())


def test_commands_and_flags_exist() -> None:
    shown = [
        (page.name, words) for page in PAGES for words in commands(page) if words[0] not in ("--help", "--version", "--debug")
    ]
    assert len(shown) > 100
    for page, words in shown:
        path, flags = command_and_flags(words)
        given = {word.partition("=")[0] for word in words if word.startswith("-")}
        assert given <= flags, f"{page}: fedfew {path} has no {sorted(given - flags)}"


def test_what_is_imported_exists() -> None:
    found = 0
    for page in PAGES:
        text = "\n".join(blocks(page, "python"))
        for line in re.findall(r"^from fedfew[\w.]* import .+$", text, re.MULTILINE):
            exec(line, {})
            found += 1
    assert found >= 10


def test_the_number_of_methods_is_right() -> None:
    ours = [cls for cls in METHODS.values() if cls.__module__.startswith("fedfew.methods.")]  # other tests may register more
    assert f"{len(ours) - 1} other methods" in (ROOT / "README.md").read_text(encoding="utf-8")
