"""Join results of one study that were made in parts, on several machines or days.

python tools/join_results.py results/leaderboard part-1 part-2    # the parts' runs are added; a newer one replaces an older one
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

from fedfew.studies import store
from fedfew.studies.study import catalogue, read


@cache
def order(study: str) -> dict[str, int]:
    """Where the columns and rows of a study of the catalogue are in its file."""
    found = read(study) if study in catalogue() else None
    return {name: at for at, name in enumerate([*found.columns, *found.rows])} if found else {}


def place(run: dict[str, Any]) -> tuple[Any, ...]:
    """What sorts runs as their study does."""
    names = order(run["study"])
    return run["study"], run["protocol"], *(names.get(run[of], len(names)) for of in ("column", "row"))


def joined(parts: list[store.Results]) -> store.Results:
    """The finished runs of all parts in the order of the study, each place in it once: the last part that has it wins."""
    runs: dict[tuple[Any, ...], dict[str, Any]] = {}
    tables: dict[str, dict[str, list[dict[str, Any]]]] = {"clients": {}, "rounds": {}}
    for part in parts:
        for run in part.runs.to_pylist():
            if run["status"] == "done":
                runs[tuple(run[name] for name in ("study", "protocol", "column", "row", "point", "seed"))] = run
        for name, by_key in tables.items():
            rows: dict[str, list[dict[str, Any]]] = {}
            for row in getattr(part, name).to_pylist():
                rows.setdefault(row["key"], []).append(row)
            by_key.update(rows)
    ordered = sorted(runs.values(), key=place)
    keys = dict.fromkeys(run["key"] for run in ordered)
    clients, rounds = ([row for key in keys for row in by_key.get(key, [])] for by_key in tables.values())
    return store.Results(store.table(ordered, store.RUNS), store.table(clients, store.CLIENTS), store.table(rounds, store.ROUNDS))


if __name__ == "__main__":
    folder, *others = map(Path, sys.argv[1:])
    store.write(folder, joined([store.read(part) for part in (folder, *others)]))
