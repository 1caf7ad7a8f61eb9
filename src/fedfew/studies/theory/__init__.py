"""The paper's theorems as programs: each statement tried on many cases, as printed and as it holds. See ``docs/theory.md``.

``fedfew study run theory``, or ``python -m fedfew.studies.theory FOLDER``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def study(folder: Path, console: Console, *, seed: int = 0) -> bool:
    """Run every check; see :func:`fedfew.studies.theory.statements.study`."""
    from fedfew.studies.theory.statements import study as run

    return run(folder, console, seed=seed)
