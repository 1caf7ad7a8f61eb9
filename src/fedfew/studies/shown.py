"""What a study shows: its tables and figures, made from the results and written beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedfew.studies.store import Results
    from fedfew.studies.study import Study

ENDINGS = {"markdown": "md", "latex": "tex", "csv": "csv"}


def check(kind: str, spec: Mapping[str, Any]) -> None:
    """Raise ValueError where a spec of ``tables`` or ``figures`` names a kind or an option that there is not."""
    module = _module(kind)
    if module is not None:
        module.check(spec)


def tables(study: Study, results: Results) -> list[Any]:
    module = _module("tables")
    return [] if module is None else list(module.made(list(study.tables), results, study.name))


def rendered(table: Any, form: str) -> str:
    text: str = getattr(import_module("fedfew.studies.render"), form)(table)
    return text


def on_screen(table: Any) -> Any:
    """A table for rich to print."""
    return import_module("fedfew.studies.render").terminal(table)


def notes(results: Results) -> list[str]:
    """What must be said beside any number of these runs: which data were not whole, what went wrong on the way."""
    pairs = zip(results.runs["column"].to_pylist(), results.runs["notes"].to_pylist(), strict=True)
    told = dict.fromkeys((column, note) for column, note in pairs if note)
    found = [f"{column}: {note}" for column, note in told]
    if len(versions := sorted({v for v in results.runs["code"].to_pylist() if v})) > 1:
        found.append(f"made by {len(versions)} versions of the code ({', '.join(versions)}); the column code of runs tells which")
    return found


def write_tables(made: Sequence[Any], folder: Path) -> list[Path]:
    """Every table in every form, below ``tables/``."""
    written = []
    for table in made:
        for form, ending in ENDINGS.items():
            path = folder / "tables" / f"{file_name(table)}.{ending}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(rendered(table, form), encoding="utf-8")
            written.append(path)
    return written


def file_name(table: Any) -> str:
    """Tables of both protocols lie beside each other."""
    return table.name if table.protocol in table.name else f"{table.name}-{table.protocol}"


def draw_figures(study: Study, results: Results, folder: Path) -> list[Path]:
    module = _module("figures")
    if module is None or not study.figures:
        return []
    return list(module.draw(list(study.figures), results, study.name, folder / "figures"))


def _module(kind: str) -> ModuleType | None:
    name = f"fedfew.studies.{kind}"
    return import_module(name) if find_spec(name) is not None else None
