"""How an optional part is installed."""

from __future__ import annotations

import re
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


def test_no_error_or_page_sends_users_of_a_clone_to_another_package_of_that_name() -> None:
    """An index of packages may have another `fedfew`, or none."""
    root = Path(__file__).parents[2]
    pages = [*(root / "src").rglob("*.py"), *(root / "docs").rglob("*.md"), root / "README.md"]
    named = [page.name for page in pages if re.search(r"pip install ['\"]?fedfew", page.read_text(encoding="utf-8"))]
    assert named == ["extras.py"]
