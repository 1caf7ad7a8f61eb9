"""The program as a whole: its commands, its version, and what it loads."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest
from click.testing import CliRunner
from typer.main import get_command

import fedfew
from fedfew import cli
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


@pytest.mark.slow
def test_a_run_on_digits_loads_no_library_that_it_can_do_without() -> None:
    """Each takes about as long to load as all rounds of a short run."""
    code = "import sys; sys.argv = 'fedfew run --rounds 1 --engine sequential'.split()\nfrom fedfew import cli\n"
    code += "try: cli.main()\nexcept SystemExit as end: assert not end.code\n"
    libraries = ("sklearn", "scipy", "pandas", "matplotlib", "pyarrow", "torch._dynamo")
    assert in_a_fresh_process(code + f"print([m for m in {libraries} if m in sys.modules])").endswith("[]\n")


def test_help_lists_commands_as_they_are_without_loading_them() -> None:
    """What the list says of a command is the first sentence of its own help."""
    listed = CliRunner().invoke(get_command(cli.program(only="")), ["--help"], prog_name="fedfew")
    assert listed.output == call("--help").output
    for name in cli.COMMANDS | cli.GROUPS:
        alone = CliRunner().invoke(get_command(cli.program(only=name)), [name, "--help"], prog_name="fedfew")
        assert alone.output == call(name, "--help").output
    code = "import sys; sys.argv = ['fedfew', *WORDS]\nfrom fedfew import cli\ntry: cli.main()\nexcept SystemExit: pass\n"
    loaded = "print('\\nloaded', *sorted(m for m in sys.modules if m in ('fedfew.cli.run', 'fedfew.cli.study')))"
    for words, expected in ((["--help"], []), (["run", "--help"], ["run"]), (["--debug", "study", "-h"], ["study"])):
        shown = in_a_fresh_process(code.replace("WORDS", repr(words)) + loaded)
        assert shown.splitlines()[-1].split()[1:] == [f"fedfew.cli.{name}" for name in expected]


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
