"""Help as it is printed: no markup of docstrings, examples one per line."""

from __future__ import annotations

from typing import Any

import pytest
from rich.text import Text

from fedfew.cli import help_text
from tests.helpers import COMMAND, call

pytestmark = pytest.mark.usefixtures("here")


def commands() -> list[list[str]]:
    found: list[list[str]] = []
    for name, command in COMMAND.commands.items():
        inner = getattr(command, "commands", None)
        found += [[name, below] for below in inner] if inner else [[name]]
    return found


def found(words: list[str]) -> Any:
    command: Any = COMMAND
    for word in words:
        command = command.commands[word]
    return command


@pytest.mark.parametrize("words", [[], *commands()], ids=" ".join)
def test_no_markup_reaches_the_terminal(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = call(*words, "--help").stdout
    assert "``" not in out
    assert ":meth:" not in out


def arguments(words: list[str]) -> list[Any]:
    return [parameter for parameter in found(words).params if parameter.param_type_name == "argument"]


@pytest.mark.parametrize("words", [words for words in commands() if arguments(words)], ids=" ".join)
def test_the_help_says_what_arguments_are(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = call(*words, "--help").stdout
    for argument in arguments(words):
        assert argument.help
        assert " ".join(argument.help.split()) in " ".join(out.replace("│", " ").split())


@pytest.mark.parametrize("words", [words for words in commands() if found(words).epilog], ids=" ".join)
def test_examples_are_printed_one_per_line(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    examples = [Text.from_markup(line).plain.strip() for line in found(words).epilog.split("\n") if line]
    assert len(examples) > 2
    assert [line.strip() for line in call(*words, "--help").stdout.splitlines() if line.strip()][-len(examples) :] == examples


def test_debug_is_documented() -> None:
    assert "--debug" in call("--help").stdout


def test_plain() -> None:
    assert (
        help_text.plain(":meth:`as_published` and :class:`~fedfew.FedFew`, ``K`` of them") == "as_published and FedFew, K of them"
    )
    assert help_text.paragraphs("One\n  line.\n\nAnother.") == "One line.\n\nAnother."
    assert help_text.one_per_line("a\nb\n\nc\n") == "a\n\nb\n\nc"
