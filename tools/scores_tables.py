"""The tables of ``docs/scores.md`` that are made from the code: what each method's scores use, and what it costs.

python tools/scores_tables.py docs/scores.md            # write them
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fedfew import data
from fedfew.evaluation.costs import cost
from fedfew.methods import METHODS, Method


def scores_table() -> str:
    """Which weights each method's two scores use."""
    return _markdown(("method", "served", "adapted"), [(f"`{m.name}`", m.served, m.adapted) for m in _methods()])


def costs_table() -> str:
    """What each method costs a round with its default settings: digits, 20 clients, the MLP, one local epoch, batches of 20."""
    head = ("method", "KiB down", "KiB up", "steps", "gradient passes", "forward passes", "models on server", "models on client")
    federation = data.digits(clients=20)
    rows = []
    for method in _methods():
        c = cost(method.name, "mlp", federation)
        numbers = [c.bytes_down / 1024, c.bytes_up / 1024, c.steps, c.gradient_passes, c.forward_passes]
        numbers += [c.server_models, c.client_models, c.inference_passes, c.selection_passes]
        rows.append((f"`{method.name}`", *(f"{n:.4g}" for n in numbers)))
    return _markdown((*head, "inference", "selection"), rows)


TABLES: dict[str, Callable[[], str]] = {"served and adapted": scores_table, "costs": costs_table}


def filled(page: str) -> str:
    """The page with each of the tables written anew between its two markers."""
    for name, table in TABLES.items():
        begin, end = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
        before, found, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"the page must have {begin} and, after it, {end}")
        page = f"{before}{begin}\n{table()}\n{end}{after}"
    return page


def write(path: Path) -> None:
    """Bring the tables of a page up to date."""
    path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")


def _methods() -> list[type[Method]]:
    """The library's own: what a user registers does not belong on its pages."""
    return [method for method in METHODS.values() if method.__module__.startswith("fedfew.")]


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write(Path(name))
