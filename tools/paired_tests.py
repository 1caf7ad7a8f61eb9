"""One row of a study's results against all others of a column, over the seeds that both have.

python tools/paired_tests.py results/leaderboard cifar10-rotation FedFew    # not corrected for the number of rows
"""

from __future__ import annotations

import sys
from pathlib import Path

from fedfew.studies import store
from fedfew.studies.significance import LEAST_SEEDS, paired

VALUES = {"served": "served_mean", "worst client": "served_min"}


def compared(runs: list[dict[str, object]], column: str, row: str) -> list[str]:
    """A line for each other row and value: the mean difference in points and both tests' p."""
    by_row: dict[str, dict[int, dict[str, object]]] = {}
    for run in runs:
        if run["column"] == column and run["status"] == "done":
            by_row.setdefault(str(run["row"]), {})[int(str(run["seed"]))] = run
    lines = []
    for other in by_row:
        seeds = sorted(set(by_row[row]) & set(by_row[other]))
        if other == row or len(seeds) < LEAST_SEEDS:
            continue
        for name, value in VALUES.items():
            of_both = ([100 * float(str(by_row[which][seed][value])) for seed in seeds] for which in (row, other))
            found = paired(*of_both)
            p = "–" if found.t_test is None else f"{found.t_test:.4f}"
            tests = f"t-test {p}, sign flips {found.sign_flips:.4f}"
            lines.append(f"{other}, {name}: {found.difference:+.2f} over {found.seeds} seeds, {tests}")
    return lines


def main() -> None:
    folder, column, row = sys.argv[1:]
    print("\n".join(compared(store.read(Path(folder)).runs.to_pylist(), column, row)))


if __name__ == "__main__":
    main()
