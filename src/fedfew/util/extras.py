"""How to install an optional part of fedfew: from the clone, where it was installed from one."""

from __future__ import annotations

from pathlib import Path


def install_command(extra: str, package: Path = Path(__file__).parents[1]) -> str:
    """A command that works from any folder. package: the folder of fedfew's modules."""
    clone = package.parents[1]
    if package.parent.name == "src" and (clone / "pyproject.toml").is_file():
        return f"pip install -e '{clone}[{extra}]'"
    return f"pip install 'fedfew[{extra}]'"
