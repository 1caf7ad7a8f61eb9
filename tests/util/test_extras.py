"""How an optional part is installed."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path

from fedfew.util.extras import install_command


def test_from_a_clone_and_from_elsewhere(tmp_path: Path) -> None:
    package = tmp_path / "src" / "fedfew"
    package.mkdir(parents=True)
    assert install_command("hub", package) == "pip install 'fedfew[hub]'"
    (tmp_path / "pyproject.toml").touch()
    assert install_command("hub", package) == f"pip install -e '{tmp_path}[hub]'"


def test_here_the_command_names_a_project_that_has_the_extra() -> None:
    *_, target = shlex.split(install_command("flower"))
    project = tomllib.loads((Path(target.removesuffix("[flower]")) / "pyproject.toml").read_text())
    assert "flower" in project["project"]["optional-dependencies"]
