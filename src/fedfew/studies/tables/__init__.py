"""Tables of a study. Here they are data; ``fedfew.studies.render`` makes text of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedfew.studies import captions
from fedfew.studies import output_options as options
from fedfew.studies.store import Results
from fedfew.studies.tables import cost_table, scores, significance
from fedfew.studies.tables.table import Cell, TableData

__all__ = ["KINDS", "OPTIONS", "Cell", "TableData", "check", "make_tables"]

KINDS: dict[str, Callable[[Mapping[str, Any], Results, str], list[TableData]]] = {
    "methods": scores.methods,
    "medical": scores.medical,
    "jain": scores.jain,
    "by-point": scores.by_point,
    "significance": significance.significance,
    "costs": cost_table.costs,
}
OPTIONS: dict[str, options.Options] = {
    "methods": {"score": options.SCORE, "measures": options.SOME_MEASURES},
    "medical": {"score": options.SCORE},
    "jain": {"score": options.SCORE},
    "by-point": {"score": options.SCORE, "measures": options.SOME_MEASURES},
    "significance": {"score": options.SCORE, "measure": options.COMPARED, "each": options.YES_OR_NO},
    "costs": {},
}


def check(spec: Mapping[str, Any]) -> None:
    """Raise ValueError for an unknown kind of table, an unknown option or a wrong value of one."""
    options.check("table", spec, OPTIONS)


def make_tables(specs: Sequence[Mapping[str, Any]], results: Results, study: str) -> list[TableData]:
    """The tables of all specs, protocol by protocol; no two of one name."""
    for spec in specs:
        check(spec)
    return captions.distinct([table for spec in specs for table in KINDS[spec["kind"]](spec, results, study)])
