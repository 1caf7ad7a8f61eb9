"""A table as CSV in long form: one line per cell, all fields, numbers in full."""

from __future__ import annotations

import csv
import io
from dataclasses import fields
from typing import Any

from fedfew.studies.tables.table import Cell, TableData
from fedfew.util.printable import for_csv

ABOUT = ("table", "protocol", "title", "row", "group", "column", "unit")
CELL = tuple(field.name for field in fields(Cell))


def to_csv(table: TableData) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*ABOUT, *CELL, "difference"])
    groups = table.groups or ("",) * len(table.columns)
    for label, cells in table.rows:
        for group, head, cell in zip(groups, table.heads, cells, strict=True):
            about = map(for_csv, (table.name, table.protocol, table.title, label, group, head, table.unit))
            writer.writerow([*about, *(_written(getattr(cell, name)) for name in CELL), _written(cell.difference)])
    return out.getvalue()


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return for_csv(value)
    return "" if value is None else repr(value)
