"""Join results of one study that were made in parts, on several machines or days.

python tools/join_results.py results/leaderboard part-1 part-2    # the parts' runs are added; a newer one replaces an older one
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from fedfew.studies import store


def joined(parts: list[store.Results]) -> store.Results:
    """The finished runs of all parts, each place in the study once: the last part that has it wins."""
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
    keys = dict.fromkeys(run["key"] for run in runs.values())
    clients, rounds = ([row for key in keys for row in by_key.get(key, [])] for by_key in tables.values())
    return store.Results(
        store.table(runs.values(), store.RUNS), store.table(clients, store.CLIENTS), store.table(rounds, store.ROUNDS)
    )


if __name__ == "__main__":
    place, *others = map(Path, sys.argv[1:])
    store.write(place, joined([store.read(part) for part in (place, *others)]))
