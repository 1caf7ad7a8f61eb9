"""A table for a terminal of any width: columns that do not fit go into further blocks."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from fedfew.studies.render import cell_text
from fedfew.studies.render.cell_text import CellText
from fedfew.studies.tables.table import TableData

BETWEEN = 3  # blanks between columns
RANKS = {1: "bold", 2: "underline"}


@dataclass(frozen=True)
class Fitted:
    """To be printed by rich; sees how wide the console is."""

    table: TableData

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.table.title, style="italic")
        rows = [(Text(label), [_cell(cell) for cell in cells]) for label, cells in cell_text.rows(self.table)]
        for block in self._blocks(rows, options.max_width):
            yield self._block(rows, block)
        yield Text(self.table.caption, style="dim")
        for note in self.table.notes:
            yield Text(f"· {note}", style="dim")

    def _blocks(self, rows: Sequence[tuple[Text, list[Text]]], room: int) -> Iterator[range]:
        """Columns in as few blocks as fit, of about as many columns each."""
        room -= max((cell_len(label.plain) for label, _ in rows), default=0) + 2  # and a blank at either end
        widths = [_width(head, [cells[i] for _, cells in rows]) + BETWEEN for i, head in enumerate(self.table.heads)]
        count = len(widths)
        for blocks in range(1, count + 1):
            size = ceil(count / blocks)
            spans = [range(begin, min(begin + size, count)) for begin in range(0, count, size)]
            if blocks == count or all(sum(widths[i] for i in span) <= room for span in spans):
                yield from spans
                return

    def _block(self, rows: Sequence[tuple[Text, list[Text]]], span: range) -> Table:
        several = any("\n" in cells[i].plain for _, cells in rows for i in span)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=True, leading=1 if several else 0)
        table.add_column("", overflow="fold")
        for i in span:
            table.add_column(self._head(i, [cells[i] for _, cells in rows]), justify="right", no_wrap=True)
        for label, cells in rows:
            table.add_row(label, *(cells[i] for i in span))
        return table

    def _head(self, i: int, cells: Sequence[Text]) -> Text:
        head = self.table.heads[i]
        lines = textwrap.wrap(head, _width(head, cells), break_long_words=False)
        return Text("\n".join([self.table.groups[i], *lines] if self.table.groups else lines))


def _width(head: str, cells: Sequence[Text]) -> int:
    lines = [line for cell in cells for line in cell.plain.split("\n")]
    return max(map(cell_len, [*lines, *head.split()]), default=1)


def _cell(cell: CellText) -> Text:
    text = Text(cell.value, style=RANKS.get(cell.rank or 0, "") if cell.known else "italic")
    text = Text.assemble(text, " ", cell_text.spreads(cell)) if cell_text.spreads(cell) else Text.assemble(text)
    for line, style in ((cell.seeds, "italic"), (cell_text.below(cell), "dim")):
        text = text.append(f"\n{line}", style=style) if line else text
    return text
