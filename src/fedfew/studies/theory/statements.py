"""The tests of all statements, as a table, a picture and a file."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedfew.studies.theory import coverage, optimality, smoothing, stationarity, statistical
from fedfew.studies.theory.check import HOLDS, Check

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

FILE = "theory.json"


def checks(seed: int = 0) -> list[Check]:
    """Every check, each with random numbers of its own: none changes with what is checked before it."""
    rng = iter(np.random.default_rng(seed).spawn(10))
    return [
        smoothing.bound(next(rng)),
        smoothing.limit(next(rng)),
        optimality.replaced(next(rng)),
        optimality.sets(next(rng)),
        *stationarity.stationarity(next(rng)),
        optimality.lemma(next(rng)),
        *coverage.bound(next(rng)),
        coverage.tchebycheff(),
        statistical.rate(next(rng)),
        statistical.two_optima(next(rng)),
        statistical.unequal(next(rng)),
    ]


def study(folder: Path, console: Console, *, seed: int = 0) -> bool:
    """Run all checks, print a table, write theory.json, theory.png and theory.svg; do all corrected statements hold?"""
    from fedfew.studies.theory.picture import draw

    found = checks(seed)
    folder.mkdir(parents=True, exist_ok=True)
    document = {"seed": seed, "holds": all(c.holds for c in found), "checks": [asdict(c) for c in found]}
    (folder / FILE).write_text(
        json.dumps(document, indent=1, ensure_ascii=False, default=lambda number: number.item()), encoding="utf-8"
    )
    pictures = [draw(found, folder / f"theory{suffix}") for suffix in (".png", ".svg")]
    console.print(table(found))
    for check in found:
        if check.corrected:
            console.print(f"[bold]{check.name}[/bold]: {check.corrected}.", soft_wrap=True, highlight=False)
    console.print(f"Written: {', '.join(str(path) for path in (folder / FILE, *pictures))}", soft_wrap=True, highlight=False)
    return all(c.holds for c in found)


def table(found: list[Check]) -> Table:
    from rich import box
    from rich.table import Table

    caption = (
        "violations: cases in which what is printed is not so. corrected: does the statement below the table hold in every case? "
        "margin: the least distance to its bound (rounding can make it −0)."
    )
    shown = Table(title="The paper's statements, tried", caption=caption, box=box.SIMPLE_HEAD, pad_edge=False)
    shown.title_justify = shown.caption_justify = "left"
    for column, justify in (
        ("statement", "left"),
        ("as printed", "left"),
        ("violations", "right"),
        ("corrected", "left"),
        ("margin", "right"),
        ("cases", "right"),
    ):
        shown.add_column(column, justify=justify)  # type: ignore[arg-type]  # one of rich's words
    for check in found:
        printed = (
            f"{check.printed}: [{'green' if check.verdict == HOLDS else 'yellow'}]{check.verdict}[/]" if check.printed else "–"
        )
        shown.add_row(
            check.name,
            printed,
            f"{check.violations:,}",
            "[green]holds[/green]" if check.holds else "[bold red]does not hold[/bold red]",
            f"{check.margin:.2g}",
            f"{check.cases:,}",
        )
    return shown
