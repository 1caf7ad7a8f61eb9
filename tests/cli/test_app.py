"""The program as a whole: its commands, its version, and what it loads."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

import fedfew
from tests.cli.small import ENVIRONMENT
from tests.helpers import call

pytestmark = pytest.mark.usefixtures("here")


def test_version() -> None:
    assert call("version").stdout == call("--version").stdout == f"fedfew {fedfew.__version__}\n"


@pytest.mark.parametrize("command", ["run", "compare", "show", "select", "methods", "demo", "bench", "version"])
def test_every_command_explains_itself(command: str) -> None:
    assert "Usage: fedfew" in call(command, "--help").stdout
    assert command in call("--help").stdout


def test_a_misspelt_command_is_suggested_once() -> None:
    shown = call("rnu", code=2).stderr
    assert shown.count("Did you mean 'run'?") == 1


def in_a_fresh_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_line_loads_nothing_slow_for_help() -> None:
    slow = ("torch", "matplotlib", "sklearn", "yaml", "pydantic", "filelock", "rich.progress")
    assert in_a_fresh_process(f"import sys, fedfew.cli; print([m for m in {slow} if m in sys.modules])") == "[]\n"


NEEDS_PYDANTIC = any(r.startswith("pydantic") for r in importlib.metadata.requires("typer") or [] if "extra ==" not in r)


@pytest.mark.slow
@pytest.mark.skipif(NEEDS_PYDANTIC, reason="this version of typer needs pydantic itself (0.29 does, those before do not)")
def test_everything_runs_without_pydantic() -> None:
    code = (
        "import sys; sys.modules['pydantic'] = None\n"
        "sys.argv = ['fedfew', 'run', '--rounds', '1', '--clients', '4', '--models', '2']\n"
        "from fedfew.cli import main; main()"
    )
    assert "round 1/1" in in_a_fresh_process(code)
