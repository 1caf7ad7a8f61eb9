"""Commands that the documents print have the flags they are printed with. They are parsed, not run."""

from __future__ import annotations

import re
import shlex

import click
from typer.main import get_command

from fedfew.cli import app
from fedfew.methods import METHODS
from fedfew.methods.hyperparameters import hyper_parameters
from tests.test_docs import PAGES, ROOT

PROGRAM = get_command(app)
PRINTED = [*PAGES, *sorted((ROOT / "examples").rglob("*.md")), *sorted((ROOT / "results").rglob("*.md"))]
OF_METHODS = {f"--{setting.name.replace('_', '-')}" for name in METHODS for setting in hyper_parameters(name)} | {"--published"}


def commands(text: str) -> list[list[str]]:
    """Of code blocks, with lines that go on joined, and of single quotations."""
    blocks = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S)).replace("\\\n", " ")
    lines = re.findall(r"^(?:torchrun .*-m )?(?:\S+/)?(fedfew .*)", blocks, re.M) + re.findall(r"`(fedfew [^`\n]*)`", text)
    return [re.split(r" [|&>] ?", " ".join(shlex.split(line, comments=True)))[0].split()[1:] for line in lines]


def unknown_flags(words: list[str]) -> list[str]:
    command: click.Command = PROGRAM
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        if words[0] not in command.commands:
            return words[:1]
        command, words = command.commands[words[0]], words[1:]
    if isinstance(command, click.Group) or {"-h", "--help"} & set(words):
        return []
    try:
        left = command.make_context("", list(words)).args
    except click.NoSuchOption as error:
        return [error.option_name]
    except click.UsageError:  # quoted without its arguments
        return []
    flags = [re.sub("^--no-", "--", word.split("=")[0]) for word in left if word.startswith("--")]
    return [flag for flag in flags if flag not in OF_METHODS]


def test_printed_commands_parse() -> None:
    found = [(str(page.relative_to(ROOT)), words) for page in PRINTED for words in commands(page.read_text(encoding="utf-8"))]
    assert len(found) > 150
    assert [(page, words) for page, words in found if unknown_flags(words)] == []


def test_a_wrong_command_would_be_found() -> None:
    page = "```\nfedfew run --modls 4 \\\n    --rounds 3\nfedfew rn\n```\nand `fedfew select --adapt`, `fedfew run --models 4`"
    assert [unknown_flags(words) for words in commands(page)] == [["--modls"], ["rn"], ["--adapt"], []]
