"""Tables as text: for a terminal, Markdown, LaTeX and CSV."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import RenderableType

from fedfew.studies.render import cell_text
from fedfew.studies.render.as_csv import to_csv
from fedfew.studies.render.as_latex import latex
from fedfew.studies.render.as_terminal import Fitted
from fedfew.studies.render.cell_text import CellText
from fedfew.studies.tables.table import TableData
from fedfew.util.printable import for_markdown

__all__ = ["FORMS", "csv", "latex", "markdown", "terminal"]

csv = to_csv
RANKS = {1: "**%s**", 2: "<u>%s</u>"}


def terminal(table: TableData) -> RenderableType:
    """For ``console.print``: fits the width it is printed in."""
    return Fitted(table)


def markdown(table: TableData) -> str:
    """A table of GitHub's Markdown, the caption and notes below."""
    heads = [f"{g} {h}" for g, h in zip(table.groups, table.heads, strict=True)] if table.groups else table.heads
    lines = [
        f"**{for_markdown(table.title)}**",
        "",
        _line(["", *map(for_markdown, heads)]),
        _line(["---", *["---:"] * len(heads)]),
    ]
    lines += [_line([for_markdown(label), *map(_cell, cells)]) for label, cells in cell_text.rows(table)]
    lines += ["", for_markdown(table.caption), "", *(f"- {for_markdown(note)}" for note in table.notes)]
    return "\n".join(lines).rstrip() + "\n"


def _cell(cell: CellText) -> str:
    if not cell.known:
        value = f"*{for_markdown(cell.value)}*" if cell.value != "–" else cell.value
    else:
        value = RANKS.get(cell.rank or 0, "%s") % cell.value
    line = " ".join(filter(None, [value, cell_text.spreads(cell), f"*{for_markdown(cell.seeds)}*" if cell.seeds else ""]))
    below = cell_text.below(cell)
    return f"{line}<br><sub>{below}</sub>" if below else line


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


FORMS: dict[str, Callable[[TableData], str]] = {"markdown": markdown, "latex": latex, "csv": csv}
