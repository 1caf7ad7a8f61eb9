"""The HTML page of a study, from its folder: its tables, figures, learning curves and runs."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedfew._version import __version__
from fedfew.report.page.html import page
from fedfew.report.page.series import short
from fedfew.studies import store
from fedfew.studies.captions import score_name
from fedfew.studies.folder import RESULTS, STUDY
from fedfew.studies.measures import SCORES
from fedfew.studies.render.cell_text import DECIMALS, number
from fedfew.studies.store import Results
from fedfew.studies.study import catalogue
from fedfew.studies.tables import Cell, TableData, make_tables
from fedfew.training.resolve import read_file

POINTS = 60  # rounds drawn of a curve
RUNS = 5000  # listed at most
FIGURES = 3_000_000  # bytes of figures in a page at most; the others are named
KINDS = {".svg": "image/svg+xml", ".png": "image/png"}
_SHOWN = ("served_mean", "served_std", "served_min", "served_jain", "adapted_mean", "adapted_std", "adapted_min", "adapted_jain")


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


def of_study(
    folder: str,
    about: Mapping[str, Any],
    results: Results | None = None,
    tables: Sequence[TableData] = (),
    figures: Sequence[Path] = (),
) -> dict[str, Any]:
    """The document of a study.

    about: the contents of its file; results: None for a study that trains nothing; figures: files, of which one of each name is
    shown.
    """
    runs = [] if results is None else results.runs.to_pylist()
    rounds = [] if results is None else results.rounds.to_pylist()
    name = str(about.get("name", folder))
    return {
        "kind": "study",
        "title": str(about.get("title", name)),
        "study": {"name": name, "about": str(about.get("about", "")).strip(), "folder": folder, "call": about.get("call")},
        "summary": _summary(runs),
        "tables": [_table(table) for table in tables],
        **_figures(figures),
        "curves": _curves(runs, rounds),
        "runs": [_run(run) for run in runs[:RUNS]],
        "reproduction": _reproduction(name),
        "made": {"fedfew": __version__},
    }


def _reproduction(name: str) -> dict[str, str]:
    """The command that makes what is missing; a study of one's own is run from the copy of its file."""
    title = "All runs that are not finished, then the tables and figures"
    if name in catalogue():
        return {"title": title, "text": f"fedfew study run {name}"}
    return {"title": f"{title} (in the folder of this study)", "text": f"fedfew study run {STUDY} --folder .."}


def _summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    states = [run["status"] for run in runs]
    done = [run for run in runs if run["status"] == "done"]
    return {
        "runs": len(runs),
        **{state: states.count(state) for state in ("done", "failed", "missing")},
        "seconds": short(sum(run["seconds"] or 0.0 for run in runs)),
        "versions": {name: _distinct(done, name) for name in ("fedfew", "torch", "code", "device", "engine", "precision")},
        "protocols": _distinct(runs, "protocol"),
        "columns": _distinct(runs, "column"),
        "seeds": len({run["seed"] for run in runs}),
        "score": score_name(runs),
    }


def _distinct(runs: Iterable[Mapping[str, Any]], name: str) -> list[str]:
    return [str(value) for value in dict.fromkeys(run.get(name) for run in runs) if value is not None]


def _run(run: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: run[name] for name in ("protocol", "column", "row", "seed", "status", "key")}
    kept |= {name: short(run[name], 5) for name in (*_SHOWN, "seconds")}
    return kept | {"point": point(run["point"]), "error": (run["error"] or "")[:500]}


def point(text: str | None) -> str:
    """The values of the grid's axes in words: models 3, mu 0.01."""
    return ", ".join(f"{name} {value}" for name, value in json.loads(text or "{}").items())


def _curves(runs: Sequence[Mapping[str, Any]], rounds: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mean scores over rounds, mean over seeds, of every place in the study that has a finished run."""
    of_run: dict[str, dict[int, Mapping[str, Any]]] = {}
    for row in rounds:
        of_run.setdefault(row["key"], {})[row["round"]] = row
    places: dict[tuple[str, ...], list[dict[int, Mapping[str, Any]]]] = {}
    for run in runs:
        if run["status"] == "done" and run["key"] in of_run:
            places.setdefault((run["protocol"], run["column"], run["row"], point(run["point"])), []).append(of_run[run["key"]])
    return [
        dict(zip(("protocol", "column", "row", "point"), place, strict=True)) | {"seeds": len(seeds)} | _means(seeds)
        for place, seeds in places.items()
    ]


def _means(seeds: Sequence[Mapping[int, Mapping[str, Any]]]) -> dict[str, Any]:
    """Over the rounds that all seeds have, evenly thinned."""
    shared = sorted(set.intersection(*(set(seed) for seed in seeds)))
    if len(shared) > POINTS:
        shared = [shared[i] for i in np.rint(np.linspace(0, len(shared) - 1, POINTS)).astype(int)]
    means: dict[str, Any] = {"rounds": shared}
    for score in SCORES:
        values = [[seed[number][f"{score}_mean"] for seed in seeds] for number in shared]
        means[score] = [None if None in row else short(float(np.mean(row)), 4) for row in values]
    return means


def _table(table: TableData) -> dict[str, Any]:
    """A table with its numbers as printed: the page has nothing to round."""
    decimals = table.decimals or (DECIMALS,) * len(table.columns)
    return {
        "title": table.title,
        "caption": table.caption,
        "protocol": table.protocol,
        "unit": table.unit,
        "columns": list(table.columns),
        "rows": [
            [label, [_cell(cell, places) for cell, places in zip(cells, decimals, strict=True)]] for label, cells in table.rows
        ],
        "notes": list(table.notes),
    }


def _cell(cell: Cell, decimals: int) -> dict[str, Any]:
    known = {
        "value": number(cell.value, decimals),
        "clients": number(cell.over_clients, decimals),
        "seeds": number(cell.over_seeds, decimals),
        "paper": number(cell.paper, decimals),
        "paper_clients": number(cell.paper_over_clients, decimals),
        "difference": number(cell.difference, decimals, signed=True),
        "rank": cell.rank,
        "note": cell.note,
        "unlike": not cell.paper_alike or None,  # the paper scored this method the other way
    }
    return {name: value for name, value in known.items() if value not in ("", None)}


def _figures(paths: Sequence[Path]) -> dict[str, Any]:
    """Each figure as a data URI, the smaller of its files, as long as the page stays small."""
    by_name: dict[str, list[Path]] = {}
    for path in sorted(paths):
        if path.suffix in KINDS:
            by_name.setdefault(path.stem, []).append(path)
    shown, named, left = [], [], FIGURES
    for name, files in by_name.items():
        smallest = min(files, key=lambda file: file.stat().st_size)
        data = base64.b64encode(smallest.read_bytes()).decode()
        if len(data) > left:
            named.append(smallest.name)
            continue
        left -= len(data)
        shown.append({"name": name.replace("-", " ").replace("_", " "), "data": f"data:{KINDS[smallest.suffix]};base64,{data}"})
    return {"figures": shown, "figures_left_out": named}
