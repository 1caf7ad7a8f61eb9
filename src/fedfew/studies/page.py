"""The HTML page of a study, from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedfew.report.page.html import page
from fedfew.report.page.study import of_study
from fedfew.studies import store
from fedfew.studies.folder import RESULTS, STUDY
from fedfew.studies.tables import make_tables
from fedfew.training.resolve import read_file


def html(folder: Path) -> str:
    """One self-contained HTML file with the tables, figures, learning curves and runs in the folder of a study."""
    return page(document(folder))


def document(folder: Path) -> dict[str, Any]:
    """What the page shows; the tables are made from the results."""
    file, name = folder / STUDY, folder.resolve().name
    about = read_file(file) if file.exists() else {}
    figures = [*folder.glob("*.png"), *folder.glob("*.svg"), *folder.glob("figures/*")]
    if not (folder / RESULTS).exists():
        return of_study(name, about, figures=figures)
    results = store.read(folder)
    tables = make_tables(about.get("tables") or [], results, about.get("name", name))
    return of_study(name, about, results, tables, figures)
