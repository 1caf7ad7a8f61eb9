from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from rich.console import Console

from fedfew.cli.places import argument, shown
from tests.cli.small import TINY
from tests.helpers import call


@pytest.mark.parametrize("name", ["runs/digits-0", "my run", "it's", 'a"b', "$HOME x", "a`b`", "x[/b]y", "a\\b c", "c!d e"])
def test_a_command_with_a_path_can_be_typed(name: str) -> None:
    assert shlex.split(f"fedfew show {argument(name)}") == ["fedfew", "show", name]
    assert "'" not in argument("my run")  # it stands in a sentence that quotes the command in single ones


def test_brackets_in_a_path_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    Console().print(f"Plot: [bold]{shown(Path('a[/b] [red]c'))}[/bold]")
    assert capsys.readouterr().out == "Plot: a[/b] [red]c\n"


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("command", [["run", "--method", "fedavg"], ["compare", "--methods", "fedavg"]], ids=["run", "compare"])
def test_folders_with_brackets_and_blanks_are_named_as_they_are(command: list[str]) -> None:
    folder = "runs [/bold] [v2]"
    out = call(*command, *TINY, "--folder", folder).stdout
    assert f"saved in {folder}" in out
    said = f"""'fedfew show "{folder}"' shows it""" if command[0] == "run" else f"Plot: {folder}/comparison.png"
    assert said in out
