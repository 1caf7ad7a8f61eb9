"""Results of one study, made in parts, joined."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from tools.join_results import joined, place

from fedfew.studies import store
from tests.studies.made_up import Book

PROGRAM = Path(__file__).parents[2] / "tools" / "join_results.py"


def part(*runs: tuple[str, int, float, str], status: str = "done", study: str = "parts") -> store.Results:
    """One run per (row, seed, served accuracy of its two clients, key)."""
    book = Book(study)
    for row, seed, accuracy, key in runs:
        run = book.scored(book.add(row, seed, key=key, status=status), [accuracy] * 2, [accuracy] * 2)
        book.round(run, 5, served_mean=accuracy)
    found = book.results()
    return store.Results(
        store.table(found.runs.to_pylist(), store.RUNS),
        store.table(found.clients.to_pylist(), store.CLIENTS),
        store.table(found.rounds.to_pylist(), store.ROUNDS),
    )


def means(results: store.Results) -> dict[tuple[str, int], float]:
    return {(run["row"], run["seed"]): run["served_mean"] for run in results.runs.to_pylist()}


def test_runs_of_all_parts_each_place_once_and_the_last_wins() -> None:
    older = part(("FedAvg", 0, 0.5, "a0"), ("FedFew", 0, 0.6, "f0"))
    newer = part(("FedFew", 0, 0.7, "f0-again"), ("FedFew", 1, 0.8, "f1"))
    found = joined([older, newer])
    assert means(found) == pytest.approx({("FedAvg", 0): 0.5, ("FedFew", 0): 0.7, ("FedFew", 1): 0.8})
    assert [row["key"] for row in found.clients.to_pylist()] == ["a0"] * 2 + ["f0-again"] * 2 + ["f1"] * 2
    assert [(row["key"], row["served_mean"]) for row in found.rounds.to_pylist()] == [("a0", 0.5), ("f0-again", 0.7), ("f1", 0.8)]
    assert means(joined([newer, older]))["FedFew", 0] == pytest.approx(0.6)


def test_a_run_that_was_not_finished_replaces_nothing() -> None:
    finished, failed = part(("FedAvg", 0, 0.5, "a0")), part(("FedAvg", 0, 0.1, "a0-failed"), status="failed")
    found = joined([finished, failed])
    assert means(found) == pytest.approx({("FedAvg", 0): 0.5})
    assert {row["key"] for row in found.clients.to_pylist()} == {"a0"}


def test_the_same_run_made_twice_has_its_clients_once() -> None:
    found = joined([part(("FedAvg", 0, 0.5, "a0")), part(("FedAvg", 0, 0.9, "a0"))])
    assert [row["served_score"] for row in found.clients.to_pylist()] == [0.9, 0.9]
    assert len(found.rounds) == 1


def test_the_program_writes_into_the_first_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write(tmp_path / "one", part(("FedAvg", 0, 0.5, "a0")))
    store.write(tmp_path / "two", part(("FedAvg", 1, 0.7, "a1")))
    monkeypatch.setattr(sys, "argv", ["join_results.py", str(tmp_path / "one"), str(tmp_path / "two")])
    runpy.run_path(str(PROGRAM), run_name="__main__")
    assert means(store.read(tmp_path / "one")) == pytest.approx({("FedAvg", 0): 0.5, ("FedAvg", 1): 0.7})
    assert len(store.read(tmp_path / "two").runs) == 1


def test_rows_and_columns_are_in_the_order_of_their_study() -> None:
    def run(column: str, row: str) -> dict[str, str]:
        return {"study": "leaderboard", "protocol": "fair", "column": column, "row": row}

    late, early, first = run("cifar10-rotation", "IFCA"), run("cifar10-rotation", "FedAvg"), run("cifar10-dir-0.5", "Local")
    gone = run("cifar10-rotation", "a row that the study had once")
    assert sorted([gone, late, first, early], key=place) == [first, early, late, gone]
    found = joined([part(("IFCA", 0, 0.5, "i"), ("FedAvg", 0, 0.5, "a"), study="leaderboard")])
    assert [each["row"] for each in found.runs.to_pylist()] == ["FedAvg", "IFCA"]
