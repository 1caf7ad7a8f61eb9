"""Tables of a study, from results that are made up so that every number is known."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from fedfew.studies import output, tables
from fedfew.studies.tables import Cell, TableData
from tests.studies import made_up
from tests.studies.made_up import Book

FEDAVG = [[0.5, 0.7], [0.4, 0.8], [0.6, 0.9]]  # means 60, 60, 75 %; population std over clients 10, 20, 15
FEDFEW = [[0.8, 0.8], [0.7, 0.9], [0.9, 0.9]]  # means 80, 80, 90 %; 0, 10, 0


def by_hand(protocol: str = "fair") -> Book:
    book = Book()
    for seed in range(3):
        book.scored(book.add("FedAvg", seed, protocol=protocol), FEDAVG[seed], [x + 0.1 for x in FEDAVG[seed]])
        book.scored(book.add("FedFew", seed, protocol=protocol), [x - 0.5 for x in FEDFEW[seed]], FEDFEW[seed])
    return book


def made(book: Book, **spec: object) -> list[TableData]:
    return tables.make_tables([{"kind": "methods"} | spec], book.results(), book.study)


def cell(table: TableData, row: str, column: str) -> Cell:
    return dict(table.rows)[row][table.columns.index(column)]


def test_two_methods_and_three_seeds_by_hand() -> None:
    served, adapted = made(by_hand())
    first = cell(served, "FedAvg", "cifar10-dir-20")
    assert first.value == pytest.approx(65)
    assert first.over_clients == pytest.approx((10 + 20 + 15) / 3)
    assert first.over_seeds == pytest.approx(math.sqrt((25 + 25 + 100) / 2))  # of 60, 60, 75 about 65, divided by two
    assert (first.seeds, first.rank, first.note) == (3, 1, "")
    assert (first.paper, first.paper_over_clients) == (61.26, 8.64)
    assert first.difference == pytest.approx(65 - 61.26)
    few = cell(adapted, "FedFew", "cifar10-dir-20")
    assert few.value == pytest.approx(250 / 3)
    assert few.over_clients == pytest.approx(10 / 3)
    assert few.over_seeds == pytest.approx(10 / math.sqrt(3))
    assert few.rank == 1
    assert cell(served, "FedFew", "cifar10-dir-20").value == pytest.approx(250 / 3 - 50)
    assert cell(adapted, "FedAvg", "cifar10-dir-20").rank == 2
    assert (served.name, adapted.name) == ("methods-fair-served", "methods-fair-adapted")


def test_the_paper_scored_fedfew_adapted_and_the_others_served() -> None:
    served, adapted = made(by_hand())
    alike = {(row, t.name): cells[0].paper_alike for t in (served, adapted) for row, cells in t.rows}
    assert [where for where, same in alike.items() if same] == [("FedAvg", served.name), ("FedFew", adapted.name)]
    assert any("the other way" in note for note in served.notes)


def test_as_published_each_method_shows_the_score_that_was_published() -> None:
    (table,) = made(by_hand("published"))
    assert cell(table, "FedAvg", "cifar10-dir-20").value == pytest.approx(65)  # served
    assert cell(table, "FedFew", "cifar10-dir-20").value == pytest.approx(250 / 3)  # adapted
    assert all(c.paper_alike for c in table.cells())
    assert "FedFew is scored adapted" in table.caption
    assert "published" in table.title
    (other,) = made(by_hand("published"), score="adapted")
    assert cell(other, "FedAvg", "cifar10-dir-20").value == pytest.approx(75)


def test_both_kinds_of_spread_are_named_and_one_seed_has_no_spread_over_seeds() -> None:
    served, _ = made(by_hand())
    assert "±: standard deviation over clients" in served.caption
    assert "(±): standard deviation over seeds" in served.caption
    book = Book()
    book.scored(book.add("FedAvg"), FEDAVG[0], FEDAVG[0])
    one, _ = made(book)
    assert one.cells()[0].over_seeds is None
    assert "(±)" not in one.caption
    assert "1 seed;" in one.caption


def test_the_caption_says_whose_adapted_scores_there_are() -> None:
    _, adapted = made(by_hand())
    assert "Adapted: after the round's local training, of clients that took part in it." in adapted.caption


def test_the_caption_says_which_round_the_scores_are_of() -> None:
    book = Book()
    book.scored(book.add("FedAvg", settings='{"keep": "best"}'), FEDAVG[0], FEDAVG[0])
    kind: dict[str, object]
    for kind in ({}, {"kind": "significance"}):
        assert all("1 seed; best round on validation data. " in table.caption for table in made(book, **kind))
        assert all("3 seeds; last round. " in table.caption for table in made(by_hand(), **kind))


def test_what_is_missing_is_told() -> None:
    book = by_hand()
    book.add("FedProx", 0, status="failed", error="Traceback (most recent call last):\n  File\nRuntimeError: out of memory")
    book.add("Ditto", 0, status="missing")
    for run in book.runs:
        if run["row"] == "FedAvg" and run["seed"] == 1:
            run |= {"status": "failed", "error": "the loss became NaN\nat once"}
    served, _ = made(book)
    column = "cifar10-dir-20"
    assert cell(served, "FedProx", column).note == "failed: RuntimeError: out of memory"
    assert cell(served, "FedProx", column).value is None
    assert cell(served, "FedProx", column).paper == 61.38
    assert cell(served, "Ditto", column).note == "not run"
    partly = cell(served, "FedAvg", column)
    assert partly.value == pytest.approx((60 + 75) / 2)
    assert partly.seeds == 2
    assert partly.note == "2 of 3 seeds, 1 failed: the loss became NaN"
    assert "FedProx, cifar10-dir-20: failed: RuntimeError: out of memory" in served.notes
    assert "FedAvg, cifar10-dir-20: 2 of 3 seeds, 1 failed: the loss became NaN" in served.notes
    assert "Not run yet: 1 of 4 cells." in served.notes


def test_columns_and_rows_that_are_asked_for_stay_even_without_runs() -> None:
    served, _ = made(by_hand(), columns=["kvasir", "cifar10-dir-20"], rows=["FedFew", "IFCA"])
    assert served.columns == ("kvasir", "cifar10-dir-20")
    assert [label for label, _ in served.rows] == ["FedFew", "IFCA"]
    assert cell(served, "IFCA", "kvasir").note == "not run"
    assert cell(served, "IFCA", "kvasir").paper == 82.05


@pytest.mark.parametrize(
    ("values", "ranks"),
    [
        ([0.5, 0.7, 0.6], [None, 1, 2]),
        ([0.7, 0.7, 0.6], [1, 1, None]),  # two are best: there is no second
        ([0.7, 0.6, 0.6], [1, 2, 2]),
        ([0.7, 0.70001, 0.6], [1, 1, None]),  # the same as printed
        ([0.7, None, 0.6], [1, None, 2]),
        ([0.7, None, None], [None, None, None]),  # nothing to compare with
        ([0.7, 0.7, 0.7], [None, None, None]),
    ],
)
def test_best_and_second(values: list[float | None], ranks: list[int | None]) -> None:
    book = Book()
    for row, value in zip(("FedAvg", "IFCA", "Local"), values, strict=True):
        run = book.add(row, status="missing" if value is None else "done")
        if value is not None:
            book.scored(run, [value], [value])
    table, _ = made(book)
    assert [c.rank for c in table.cells()] == ranks


def test_less_is_better_for_the_spread_and_nothing_is_for_the_weights() -> None:
    book = by_hand()
    for run in book.runs:
        run |= {"entropy": 0.1 if run["row"] == "FedFew" else None}
    _, adapted, weights = made(book, measures=["std", "entropy"])
    assert adapted.columns == ("cifar10-dir-20",)  # of the one scored measure
    assert [c.rank for c in adapted.cells()] == [2, 1]
    assert weights.name == "methods-fair-unscored"
    assert [(c.value, c.note, c.rank) for c in weights.cells()] == [(None, "has none", None), (pytest.approx(0.1), "", None)]


def test_mean_worst_and_best_client_of_several_data() -> None:
    book = Book("table2")
    for column, clients in (("kvasir", [0.8, 1.0]), ("fedisic", [0.4, 0.6])):
        book.scored(book.add("Local", column=column), clients, clients)
    (served, _) = tables.make_tables([{"kind": "medical"}], book.results(), "table2")
    assert served.columns[:3] == ("kvasir mean", "kvasir worst client", "kvasir best client")
    assert served.groups == ("kvasir",) * 3 + ("fedisic",) * 3
    assert served.heads == ("mean", "worst client", "best client") * 2
    row = dict(served.rows)["Local"]
    assert [c.value for c in row] == pytest.approx([90, 80, 100, 50, 40, 60])
    assert [c.paper for c in row] == [92.16, 80.49, 100, 65.37, 41.08, 94.54]
    assert row[0].over_clients == pytest.approx(10)
    assert row[1].over_clients is None


def test_jains_table() -> None:
    (served, _) = tables.make_tables([{"kind": "jain"}], by_hand().results(), "table1")
    shown = cell(served, "FedAvg", "cifar10-dir-20")
    exact = [(a + b) ** 2 / (2 * (a * a + b * b)) for a, b in FEDAVG]
    assert shown.value == pytest.approx(sum(exact) / 3)
    assert shown.paper == 0.981
    assert served.decimals == (3,)
    assert served.unit == ""


def test_along_a_grid_the_rows_are_its_points() -> None:
    book = made_up.sweep("models", [1, 2, 3], study="k")
    specs = [{"kind": "by-point", "rows": ["FedFew"], "measures": ["weighted_mean", "min", "entropy"]}]
    published, weights, served, _, _ = tables.make_tables(specs, book.results(), "k")
    assert [label for label, _ in published.rows] == ["K = 1", "K = 2", "K = 3"]
    assert published.columns == ("weighted mean", "worst client")
    first = cell(published, "K = 1", "weighted mean")
    assert first.paper == 91.3
    assert first.value == pytest.approx(100 * book.runs[0]["adapted_weighted_mean"])
    assert cell(published, "K = 2", "weighted mean").paper is None
    assert any("weighted mean 89.4–91.3 for K in 1, 2, 3, 4" in note for note in published.notes)
    assert weights.columns == ("cifar10-dir-20",)
    assert cell(served, "K = 2", "worst client").seeds == 3


def test_a_baseline_that_knows_nothing_of_the_axis_is_one_row() -> None:
    """FedAvg crossed with K is the same run at every K."""
    book = made_up.sweep("models", [1, 2, 3], study="k")
    fair = next(t for t in tables.make_tables([{"kind": "by-point"}], book.results(), "k") if t.name == "by-point-fair-adapted")
    assert [label for label, _ in fair.rows] == ["FedFew, K = 1", "FedFew, K = 2", "FedFew, K = 3", "FedAvg"]
    assert cell(fair, "FedAvg", "mean, %").seeds == 3
    assert cell(fair, "FedFew, K = 2", "mean, %").seeds == 3


def test_local_epochs_times_rounds() -> None:
    book = made_up.sweep("local_epochs", [1, 2, 16], study="epochs")
    spec = {"kind": "by-point", "rows": ["FedFew"], "measures": ["mean"], "protocols": ["published"]}
    (table,) = tables.make_tables([spec], book.results(), "epochs")
    assert [label for label, _ in table.rows][1] == "local epochs = 2, rounds = 1000"
    assert [c.paper for c in table.cells()] == [None, 88.3, 87.8]
    assert not any("The paper trained" in note for note in table.notes)  # the same updates


def test_shortened_runs_are_not_passed_off_as_the_papers() -> None:
    book = by_hand()
    for run in book.runs:
        run["rounds"] = 100
    served, _ = made(book)
    assert "The paper trained for 2000 rounds × local epochs, these runs for 100: cifar10-dir-20." in served.notes


def test_where_keeps_a_part_of_the_grid_and_those_who_know_nothing_of_it() -> None:
    book = made_up.sweep("mu", [0.001, 0.01, 0.1], study="mu", seeds=1)
    spec = {"kind": "methods", "where": {"mu": [0.01]}, "protocols": ["fair"], "score": "served"}
    (table,) = tables.make_tables([spec], book.results(), "mu")
    assert [label for label, _ in table.rows] == ["FedFew, μ = 0.01", "FedAvg"]


def test_each_method_against_the_best_over_seeds() -> None:
    """FedFew leads FedAvg by 20, 20, 15 points adapted less 10: 10, 10, 5."""
    (table,) = tables.make_tables([{"kind": "significance", "score": "adapted"}], by_hand().results(), "table1")
    fedavg, fedfew = dict(table.rows)["FedAvg"], dict(table.rows)["FedFew"]
    assert fedavg[0].value == pytest.approx(75)
    assert fedavg[1].value == pytest.approx(-25 / 3)
    error = 5 / math.sqrt(3) / math.sqrt(3)  # sample std of 10, 10, 5 is 5/√3
    assert fedavg[2].value == pytest.approx(-25 / 3 - 4.302653 * error, abs=1e-5)
    assert fedavg[6].value == 0.25
    assert fedavg[5].value == pytest.approx(fedavg[4].value)  # one comparison: nothing to correct
    assert fedfew[0].rank == 1
    assert [c.note for c in fedfew[1:]] == ["the best"] + 6 * [""]
    assert any("With 3 seeds the sign-flip test cannot give a p below 0.25" in note for note in table.notes)
    assert any("chosen on these same numbers" in note for note in table.notes)


def test_significance_needs_three_seeds_and_says_so() -> None:
    book = by_hand()
    book.scored(book.add("IFCA", 0), [0.1, 0.2], [0.1, 0.2])
    book.scored(book.add("Local", 7), [0.1, 0.2], [0.1, 0.2])
    (table,) = tables.make_tables([{"kind": "significance", "score": "served"}], book.results(), "table1")
    assert dict(table.rows)["IFCA"][1] == Cell(None, note="1 seed")
    assert "A test needs 3 seeds; fewer: IFCA (1), Local (1)." in table.notes
    alone = Book()
    for seed in range(3):
        alone.scored(alone.add("FedAvg", seed), [0.5], [0.5])
    alone.add("IFCA", status="missing")
    (empty,) = tables.make_tables([{"kind": "significance", "score": "served"}], alone.results(), "table1")
    assert [row[0].note for _, row in empty.rows] == ["", "not run"]
    assert not any("sign-flip" in note for note in empty.notes)
    one = Book()
    one.scored(one.add("FedAvg"), [0.5], [0.5])
    assert tables.make_tables([{"kind": "significance"}], one.results(), "table1") == []


def test_significance_of_several_data_in_one_table_or_in_one_each() -> None:
    book = made_up.table1(columns=("femnist-20", "cifar10-dir-20"))
    (short,) = tables.make_tables([{"kind": "significance", "score": "adapted"}], book.results(), "table1")
    full = tables.make_tables([{"kind": "significance", "score": "adapted", "each": True}], book.results(), "table1")
    assert [t.name for t in full] == ["significance-fair-adapted-femnist-20", "significance-fair-adapted-cifar10-dir-20"]
    assert short.groups == ("femnist-20",) * 4 + ("cifar10-dir-20",) * 4
    for (label, row), (_, whole) in zip(short.rows, full[1].rows, strict=True):
        difference, half, t_test, flips = row[4:]
        assert (difference.value, t_test.value, flips.value) == (whole[1].value, whole[5].value, whole[7].value), label
        if difference.value is not None:
            assert difference.value + half.value == pytest.approx(whole[3].value)
    assert dict(short.rows)["FedProx"][0].note == "failed"
    assert any("FedProx on femnist-20 (0), APFL on cifar10-dir-20 (2)" in note for note in short.notes)


def test_seeds_of_no_difference_in_spread_are_said_to_have_none() -> None:
    book = Book()
    for seed in range(3):
        book.scored(book.add("FedAvg", seed), [0.5], [0.5])
        book.scored(book.add("IFCA", seed), [0.75], [0.75])
    (table,) = tables.make_tables([{"kind": "significance", "score": "served"}], book.results(), "table1")
    assert [c.note for c in dict(table.rows)["FedAvg"][2:6]] == ["no spread"] * 4
    assert dict(table.rows)["FedAvg"][6].value == 0.25


def test_of_costs_the_least_is_the_best_and_what_has_no_best_is_not_compared() -> None:
    book = by_hand()
    for run in book.runs:
        run["seconds"] = 10.0 + run["seed"] + (5 if run["row"] == "FedFew" else 0)
    (table,) = tables.make_tables([{"kind": "significance", "measure": "seconds"}], book.results(), "table1")
    assert dict(table.rows)["FedAvg"][1].note == "the best"
    assert dict(table.rows)["FedFew"][1].value == 5
    with pytest.raises(ValueError, match=r"measure of the table significance must be one of mean, .*, not 'entropy'"):
        tables.check({"kind": "significance", "measure": "entropy"})


def test_many_seeds_are_drawn_and_that_is_told() -> None:
    book = Book()
    for seed in range(13):
        book.scored(book.add("FedAvg", seed), [0.5 + seed / 100], [0.5])
        book.scored(book.add("IFCA", seed), [0.7 - seed / 100], [0.7])
    (table,) = tables.make_tables([{"kind": "significance", "score": "served"}], book.results(), "table1")
    assert any("Beyond 12 seeds" in note for note in table.notes)
    assert not any("however large" in note for note in table.notes)


def test_a_run_that_left_no_row_is_missed_all_the_same() -> None:
    """A runner may write down only what was begun."""
    book = by_hand()
    book.runs.remove(next(run for run in book.runs if run["row"] == "FedAvg" and run["seed"] == 2))
    served, _ = made(book)
    assert cell(served, "FedAvg", "cifar10-dir-20").note == "2 of 3 seeds"
    assert cell(served, "FedFew", "cifar10-dir-20").note == ""


def test_reasons_are_told_once_for_all_measures_and_many_rows() -> None:
    book = Book("table2")
    for row in ("FedAvg", "FedProx", "IFCA", "Ditto"):
        book.add(row, column="kvasir", status="missing", error="kvasir is not here")
        book.scored(book.add(row, column="fedisic"), [0.5], [0.5])
    served, _ = tables.make_tables([{"kind": "medical"}], book.results(), "table2")
    assert cell(served, "IFCA", "kvasir worst client").note == "not run: kvasir is not here"
    assert served.notes[0] == "4 rows, kvasir: not run: kvasir is not here"
    assert sum("kvasir is not here" in note for note in served.notes) == 1


def test_many_reasons_are_cut_short_but_counted() -> None:
    book = by_hand()
    for i in range(15):
        book.add("IFCA", column=f"data-{i}", status="failed", error=f"reason {i}: {'long ' * 50}")
    served, _ = made(book)
    assert "… and 3 more." in served.notes
    assert served.notes[0].endswith("…")


def printed(renderables: Iterable[RenderableType]) -> str:
    console = Console(file=io.StringIO(), width=300)
    for one in renderables:
        console.print(one)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_terminal_shows_each_note_once() -> None:
    """Both tables have both notes, since they are files of their own; a run's note follows the tables in full."""
    book = by_hand()
    book.add("IFCA", column="kvasir", status="missing", error="kvasir is not here")
    note = f"engine: sequential, {'a long reason, ' * 20}"
    book.runs[0]["notes"] = note
    two, results = made(book), book.results()
    missing, short = "IFCA, kvasir: not run: kvasir is not here", f"cifar10-dir-20: {note[:117]}…"
    assert all(missing in table.notes and short in table.notes for table in two)
    assert output.notes(results) == [f"cifar10-dir-20: {note}"]
    with_notes_below, alone = printed(output.for_terminal(two, results)), printed(output.for_terminal(two))
    assert (with_notes_below.count(missing), with_notes_below.count(short)) == (1, 0)
    assert (alone.count(missing), alone.count(short)) == (1, 1)


def test_columns_without_a_number_of_the_papers_are_not_compared_in_length() -> None:
    book = by_hand()
    book.scored(book.add("FedAvg", column="mine", rounds=7), [0.5], [0.5])
    served, _ = made(book)
    assert not any("these runs for 7" in note for note in served.notes)


def test_holm_counts_all_comparisons_of_a_table() -> None:
    (table,) = tables.make_tables(
        [{"kind": "significance", "columns": ["cifar10-dir-20"], "score": "adapted", "protocols": ["fair"]}],
        made_up.table1(columns=("cifar10-dir-20",)).results(),
        "table1",
    )
    tested = [row for _, row in table.rows if row[4].value is not None]
    assert len(tested) == 8  # ten methods, less the best and APFL with two seeds
    least = min(tested, key=lambda row: row[4].value)
    assert least[5].value == pytest.approx(8 * least[4].value)
    assert min(row[7].value for row in tested) == 1.0  # 8 × 0.25


def test_costs_are_the_counted_ones() -> None:
    book = made_up.table1(columns=("femnist-20",), protocols=("fair",))
    (table,) = tables.make_tables([{"kind": "costs"}], book.results(), "table1")
    assert cell(table, "FedAvg", "MB up").value == pytest.approx(3.514152)
    assert cell(table, "FedAvg", "steps").value == 44.5
    assert cell(table, "FedAvg", "steps").over_seeds is None  # the same of every seed
    assert cell(table, "FedProx", "steps").note == "failed"


def test_runs_that_failed_or_have_no_such_number_are_not_called_not_run() -> None:
    book = by_hand_with_costs()
    book.add("FedProx", status="failed", error="the loss became NaN")
    book.add("Ditto", status="missing")
    for seed in range(3):
        book.scored(book.add("IFCA", seed), [0.5], [0.5])
    for run in book.runs:
        run["macro_f1"] = None if run["row"] == "IFCA" else 0.5
        run["cost"] = None if run["row"] == "IFCA" else run["cost"]
    (cost,) = tables.make_tables([{"kind": "costs"}], book.results(), "table1")
    (tests,) = tables.make_tables([{"kind": "significance", "measure": "macro_f1"}], book.results(), "table1")
    expected = {"FedProx": "failed", "Ditto": "not run", "IFCA": "has none"}
    assert {row: cell(cost, row, "steps").note for row in expected} == expected
    assert {row: dict(tests.rows)[row][1].note for row in expected} == expected


def test_megabytes_of_a_small_model_are_not_printed_as_0() -> None:
    book = by_hand_with_costs()
    for run in book.runs:
        run["cost"] = json.dumps(made_up.COST | {"bytes_up": 0 if run["row"] == "FedAvg" else 28.0, "bytes_down": 19_300.0})
    (table,) = tables.make_tables([{"kind": "costs"}], book.results(), "table1")
    up, down, steps, *_ = table.decimals
    assert (up, down, steps) == (6, 2, 1)  # 0.000028 and 0.02


def test_costs_that_depend_on_the_seed_are_means() -> None:
    book = by_hand_with_costs()
    for run in book.runs:
        run["cost"] = json.dumps(made_up.COST | {"server_models": 1.0 + run["seed"]})  # as many as CFL found
    (table,) = tables.make_tables([{"kind": "costs"}], book.results(), "table1")
    found = cell(table, "FedAvg", "models on server")
    assert (found.value, found.over_seeds, found.seeds) == (2, 1, 3)


def test_no_two_tables_share_a_name() -> None:
    specs = [{"kind": "methods", "score": "served"}, {"kind": "methods", "score": "served"}, {"kind": "methods", "name": "mine"}]
    names = [t.name for t in tables.make_tables(specs, by_hand().results(), "table1")]
    assert names == ["methods-fair-served", "methods-fair-served-2", "mine-fair-served", "mine-fair-adapted"]


def test_runs_of_another_study_are_left_out() -> None:
    assert tables.make_tables([{"kind": "methods"}], by_hand().results(), "another") == []


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("methods", "a table must be a mapping with a kind, like {kind: methods}, not 'methods'"),
        ({"title": "x"}, "a table needs a kind, one of: methods, medical"),
        ({"kind": "method"}, "there is no kind of table 'method'; did you mean 'methods'?"),
        (
            {"kind": "by-point", "mesures": ["mean"]},
            "there is no option of the table by-point 'mesures'; did you mean 'measures'?",
        ),
        ({"kind": "methods", "score": "best"}, "score of the table methods must be one of served, adapted, both, not 'best'"),
        ({"kind": "by-point", "measures": ["accuracy"]}, "measures of the table by-point must be a list of some of mean"),
        ({"kind": "methods", "columns": "kvasir"}, "columns of the table methods must be a list of names, not 'kvasir'"),
        ({"kind": "methods", "where": ["mu"]}, "where of the table methods must be a mapping of axes"),
        ({"kind": "significance", "measure": "means"}, "measure of the table significance must be one of mean"),
        ({"kind": "costs", "score": "served"}, "there is no option of the table costs 'score'"),
    ],
)
def test_a_wrong_spec_is_refused(spec: object, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        tables.check(spec)


def test_every_kind_takes_its_plain_form() -> None:
    assert set(tables.KINDS) == set(tables.OPTIONS)
    for kind in tables.KINDS:
        tables.check({"kind": kind})
        assert tables.make_tables([{"kind": kind}], by_hand_with_costs().results(), "table1")


def by_hand_with_costs() -> Book:
    book = by_hand()
    for run in book.runs:
        run["cost"] = json.dumps(made_up.COST)
    return book


def test_the_page_names_every_kind_option_and_measure() -> None:
    from fedfew.studies import figures, measures
    from fedfew.studies import output_options as options

    page = (Path(__file__).parents[2] / "docs" / "tables-and-figures.md").read_text(encoding="utf-8")
    for kinds in (tables.OPTIONS, figures.OPTIONS):
        for kind, own in kinds.items():
            rows = [row for row in page.splitlines() if row.startswith(f"| `{kind}` |")]
            assert any(re.findall(r"`([a-z_]+)`", row.rpartition(" | ")[2]) == list(own) for row in rows), kind
    for name in (*measures.MEASURES, *options.COMMON):
        assert f"`{name}`" in page


@pytest.mark.parametrize(
    ("scores", "word"), [([None, "accuracy"], "accuracy"), (["R²", "R²"], "R²"), (["R²", "accuracy"], "score")]
)
def test_a_title_names_the_score_of_the_task(scores: list[str | None], word: str) -> None:
    book = Book()
    for row, score in zip(("FedAvg", "FedFew"), scores, strict=True):
        book.scored(book.add(row, score=score), FEDAVG[0], FEDAVG[0])
    assert made(book)[0].title.startswith(f"table1: test {word}, mean")
