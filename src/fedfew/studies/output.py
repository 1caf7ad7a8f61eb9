"""The tables and figures of a study, made from its results and written beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfew.util.printable import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fedfew.studies.store import Results
    from fedfew.studies.study import Study
    from fedfew.studies.tables import TableData

ENDINGS = {"markdown": "md", "latex": "tex", "csv": "csv"}
# Tables and figures are imported where they are made: the program starts faster without them.


def check(kind: str, spec: Mapping[str, Any]) -> None:
    """Raise ValueError where an entry of ``tables`` or ``figures`` has an unknown kind or option."""
    from fedfew.studies import figures
    from fedfew.studies import tables as kinds_of_tables

    (kinds_of_tables if kind == "tables" else figures).check(spec)


def tables(study: Study, results: Results) -> list[TableData]:
    from fedfew.studies.tables import make_tables

    return make_tables(list(study.tables), results, study.name)


def rendered(table: TableData, form: str) -> str:
    from fedfew.studies import render

    return render.FORMS[form](table)


def for_terminal(made: Sequence[TableData], printed_below: Results | None = None) -> Iterator[RenderableType]:
    """Tables for rich to print, each note below the first table that has it; printed_below: runs whose :func:`notes` are printed
    after the tables, and are left out here."""
    from fedfew.studies import captions, render

    below = [] if printed_below is None else _remarks(printed_below)
    known = {printable(captions.remark(column, note)) for column, note in below}
    for table in made:
        yield render.terminal(replace(table, notes=tuple(note for note in table.notes if note not in known)))
        known |= set(table.notes)


def notes(results: Results) -> list[str]:
    """What belongs beside the numbers of these runs: which data were not whole, what went wrong."""
    found = [f"{column}: {note}" for column, note in _remarks(results)]
    if len(versions := sorted({v for v in results.runs["code"].to_pylist() if v})) > 1:
        found.append(f"made by {len(versions)} versions of the code ({', '.join(versions)}); see the column code of runs")
    return found


def _remarks(results: Results) -> list[tuple[str, str]]:
    pairs = zip(results.runs["column"].to_pylist(), results.runs["notes"].to_pylist(), strict=True)
    return [(column, note) for column, note in dict.fromkeys(pairs) if note]


def write_tables(made: Sequence[TableData], folder: Path) -> list[Path]:
    """Write every table in every form into ``tables/``."""
    written = []
    for table in made:
        for form, ending in ENDINGS.items():
            path = folder / "tables" / f"{file_name(table)}.{ending}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(rendered(table, form), encoding="utf-8")
            written.append(path)
    return written


def file_name(table: TableData) -> str:
    """With the protocol, since tables of all protocols are in one folder."""
    return table.name if table.protocol in table.name else f"{table.name}-{table.protocol}"


def draw_figures(study: Study, results: Results, folder: Path) -> list[Path]:
    from fedfew.studies import figures

    return figures.draw(list(study.figures), results, study.name, folder / "figures") if study.figures else []
