"""The text of a cell, the same in every format: 88.26 ±9.06 (±0.31), and the paper's number below."""

from __future__ import annotations

from dataclasses import dataclass

from fedfew.studies.tables.table import Cell, TableData

DECIMALS = 2  # where a table does not say


@dataclass(frozen=True)
class CellText:
    """The parts of a printed cell; empty where there is nothing to say."""

    value: str  # or why there is none
    over_clients: str  # without their ±
    over_seeds: str
    paper: str
    paper_over_clients: str
    difference: str  # with its sign
    unlike: bool  # the paper scored this the other way
    seeds: str  # "2 of 3 seeds", where not all came to an end
    rank: int | None
    known: bool


def cell_text(cell: Cell, decimals: int) -> CellText:
    known = cell.value is not None
    note = cell.note.partition(",")[0].partition(":")[0]  # the rest, such as an error, is in the table's notes
    return CellText(
        value=number(cell.value, decimals) or ("–" if note in ("", "has none") else note),
        over_clients=number(cell.over_clients, decimals),
        over_seeds=number(cell.over_seeds, decimals),
        paper=number(cell.paper, decimals),
        paper_over_clients=number(cell.paper_over_clients, decimals),
        difference=number(cell.difference, decimals, signed=True),
        unlike=not cell.paper_alike,
        seeds=note if known else "",
        rank=cell.rank,
        known=known,
    )


def number(value: float | None, decimals: int, signed: bool = False) -> str:
    """With a true minus sign, and never −0.00."""
    if value is None:
        return ""
    text = f"{value:{'+' if signed else ''}.{decimals}f}"
    if float(text) == 0:
        text = text.replace("-", "+" if signed else "")
    return text.replace("-", "−")


def rows(table: TableData) -> list[tuple[str, list[CellText]]]:
    """All cells as text, row by row."""
    decimals = table.decimals or (DECIMALS,) * len(table.columns)
    return [
        (label, [cell_text(cell, places) for cell, places in zip(cells, decimals, strict=True)]) for label, cells in table.rows
    ]


def spreads(cell: CellText) -> str:
    """± over clients, and in brackets that over seeds."""
    seeds = f"(±{cell.over_seeds})" if cell.over_seeds else ""
    return " ".join(filter(None, [f"±{cell.over_clients}" if cell.over_clients else "", seeds]))


def below(cell: CellText) -> str:
    """The paper's number, and ours less the paper's."""
    if not cell.paper:
        return ""
    spread = f" ±{cell.paper_over_clients}" if cell.paper_over_clients else ""
    difference = f" {cell.difference}" if cell.difference else ""
    return f"{cell.paper}{spread}{difference}{'†' if cell.unlike else ''}"
