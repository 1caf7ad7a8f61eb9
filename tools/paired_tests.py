"""One row of a study's results against all others of a column, over the seeds that both have, protocol by protocol.

python tools/paired_tests.py results/leaderboard cifar10-rotation FedFew    # not corrected for the number of rows
python tools/paired_tests.py results/digits/quick-k digits-rotated "FedFew, K = 3"  # of a row with several grid points, one
"""

from __future__ import annotations

import sys
from pathlib import Path

from fedfew.studies import store
from fedfew.studies.measures import MEASURES
from fedfew.studies.tables.significance import paired_seeds, seeds_of
from fedfew.studies.view import View, views


def compared(results: store.Results, column: str, row: str) -> list[str]:
    """A line for each protocol, other row, score and measure: the mean difference in points and both tests' p."""
    found = [view for study in dict.fromkeys(results.runs["study"].to_pylist()) for view in views({}, results, study)]
    labels = dict.fromkeys(line.label for view in found for line in view.lines if view.done(column, line))
    if row not in labels:
        raise ValueError(f"{row!r} must be a row of {column!r} that was run, one of: {'; '.join(labels) or 'none'}")
    return [line for view in found for line in _within(view, column, row)]


def _within(view: View, column: str, row: str) -> list[str]:
    """Those of one protocol."""
    ours = [line for line in view.lines if line.label == row]
    lines = []
    for other in view.lines if ours else ():
        for score in view.scores():
            for name in ("mean", "min"):
                one, two = (seeds_of(view, column, line, MEASURES[name], score) for line in (ours[0], other))
                found = None if other == ours[0] else paired_seeds(one, two)
                if found is not None:
                    p = "–" if found.t_test is None else f"{found.t_test:.4f}"
                    tests = f"over {found.seeds} seeds, t-test {p}, sign flips {found.sign_flips:.4f}"
                    what = f"{view.protocol}, {other.label}, {score} {MEASURES[name].head}"
                    lines.append(f"{what}: {found.difference:+.2f} {tests}")
    return lines


def main() -> None:
    folder, column, row = sys.argv[1:]
    print("\n".join(compared(store.read(Path(folder)), column, row)))


if __name__ == "__main__":
    main()
