"""Numbers, tables and plots of finished runs."""

from __future__ import annotations

import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import fedfew
from fedfew.evaluation.metrics import summarise, weight_diagnostics
from fedfew.report import AcrossSeeds, choosing_k, class_tables, describe, mean_curve, plots, same_grouping, tables
from fedfew.training.checkpoint import CheckpointError
from tests.evaluation.choosing_k.test_decision import advice
from tests.helpers import federation


@pytest.fixture(scope="module")
def run() -> fedfew.Run:
    federation = fedfew.data.digits(4)
    return fedfew.train(federation, "mlp", fedfew.FedFew(models=2), rounds=3, participation=0.5, engine="stacked", batch_size=10)


def test_two_kinds_of_spread_are_told_apart() -> None:
    seeds = [summarise([0.2, 0.4]), summarise([0.6, 0.6])]
    across = AcrossSeeds.of(seeds)
    assert across.mean == pytest.approx(0.45)
    assert across.std_over_seeds == pytest.approx(0.3 / math.sqrt(2))  # sample std of 0.3 and 0.6
    assert across.std_over_clients == pytest.approx(0.05)  # mean of 0.1 and 0
    assert across.worst == pytest.approx(0.4)  # mean of 0.2 and 0.6
    assert math.isnan(AcrossSeeds.of(seeds[:1]).std_over_seeds)


@pytest.mark.parametrize(
    ("groups", "choice", "same"),
    [
        ([0, 0, 1, 1], [3, 3, 2, 2], True),
        ([0, 0, 1, 1], [0, 0, 0, 0], False),  # two groups share a model
        ([0, 0, 1, 1], [0, 1, 2, 2], False),  # a group is split
        ([0, 0, 0, 0], [1, 1, 1, 1], True),
    ],
)
def test_groups_are_the_same_but_for_their_names(groups: list[int], choice: list[int], same: bool) -> None:
    assert same_grouping(groups, choice) is same


def test_mean_curve_counts_those_who_took_part(run: fedfew.Run) -> None:
    assert mean_curve(run.history, "adapted") == pytest.approx(np.nanmean(run.history.adapted_accuracy, axis=1))


def test_a_run_as_plain_values(run: fedfew.Run, capsys: pytest.CaptureFixture[str]) -> None:
    tables.print_json(describe(run))
    document = json.loads(capsys.readouterr().out)
    assert document["last_and_best"]["last"]["round"] == 3
    assert [c["adapted"] for c in document["clients"]].count(None) == 2
    assert [c["model"] for c in document["clients"]] == run.choice.tolist()


def shown(table: object, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(table)
    return console.export_text()


def test_percentages() -> None:
    assert tables.percent(0.1234) == "12.3"
    assert tables.percent(float("nan")) == "–"
    assert tables.plus_minus(0.5, 0.1) == "50.0 ± 10.0"
    assert tables.plus_minus(0.5, float("nan")) == "50.0"


def test_tables_hold_every_client_and_method(run: fedfew.Run) -> None:
    clients = shown(tables.clients(run, {"train": [5, 6, 7, 8]}))
    assert "samples" in clients
    assert "group" not in clients
    assert clients.count("–") >= 2  # absent clients have no adapted score
    assert "± seeds" not in shown(tables.comparison({"one": [run]}, "title"))
    assert "± seeds" in shown(tables.comparison({"one": [run, run], "two": [run, run]}, "title"))


def test_tables_fit_an_ordinary_terminal(run: fedfew.Run) -> None:
    text = shown(tables.comparison({"fedfew:models=4,mu=0.003": [run, run]}, "title"), width=80)
    assert "…" not in text
    assert "worst client" in text
    text = shown(choosing_k.table(advice({1: [1.0, 1.0], 10: [0.4, 0.4]}), "title"), width=80)
    assert "…" not in text
    for column in ("models", "in use", "0.400", "0.600 ± 0.052", "accuracy, %", "K = 10, seed 0", "MB up"):
        assert column in text


def test_headings_are_wrapped_before_a_table_is_wider_than_the_terminal(run: fedfew.Run) -> None:
    def widths(columns: int) -> set[int]:
        console = Console(width=columns, file=io.StringIO())
        tables.show(console, tables.comparison({"fedfew:models=4,mu=0.003": [run, run]}, "title"))
        return {len(line) for line in console.file.getvalue().splitlines()}  # type: ignore[attr-defined]

    assert max(widths(80)) <= 80 < max(widths(100)) <= 100


def test_the_entropy_of_weights_stands_beside_that_of_equal_ones() -> None:
    data = fedfew.data.digits(4)
    text = shown(tables.run_summary(fedfew.train(data, "mlp", fedfew.FedFew(models=3, mu=1e6), rounds=1), {}))
    assert "entropy of w 1.1 (equal weights: 1.1)" in text.replace("\n", " ")


def test_means_by_test_samples_where_clients_differ_in_these() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 3)), rng.integers(2, size=60)

    def said(*sizes: int) -> str:
        parts = [(x[:n], y[:n]) for n in sizes]
        of = fedfew.train(fedfew.Federation.from_arrays(parts, parts, classes=2), "linear", "local", rounds=1)
        right = sum(n * score for n, score in zip(sizes, of.history.served_accuracy[-1], strict=True)) / sum(sizes)
        return (
            f"served {100 * right:.1f}"
            if f"test samples: served {100 * right:.1f}, adapted" in shown(tables.run_summary(of, {}))
            else ""
        )

    assert said(10, 60)
    assert said(20, 20) == ""


@pytest.mark.slow
def test_plots_are_written_and_leave_matplotlib_as_it_was(run: fedfew.Run, tmp_path: Path) -> None:
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    others = {label: fedfew.train(fedfew.data.digits(4), method=label, rounds=2) for label in ("local", "fedavg")}
    written = [
        plots.run(run, tmp_path / "below" / "run.png", [0, 1, 0, 1]),
        plots.run(run, tmp_path / "ungrouped.png"),
        plots.run(others["local"], tmp_path / "without-weights.svg"),
        plots.comparison({"a": [run, run], "b": [run, run]}, tmp_path / "comparison.png", "title"),
        plots.demo({**others, "fedfew": run}, [0, 1, 0, 1], tmp_path / "demo.pdf", "fedfew", ("left", "right")),
    ]
    for path in written:
        assert path.stat().st_size > 5000
    assert dict(mpl.rcParams) == before


def test_a_plot_must_have_the_name_of_a_picture(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must end in \.png"):
        plots.check_name(tmp_path / "plot.doc")


def test_the_page_of_a_run_and_of_its_folder_show_the_same_numbers(tmp_path: Path) -> None:
    run = fedfew.train(federation(), "linear", "fedavg", rounds=2, engine="stacked", device="cpu", folder=tmp_path / "mine")
    pages = [fedfew.report.html(given) for given in (run, tmp_path / "mine", str(tmp_path / "mine"))]
    assert all(page.startswith("<!doctype html>") for page in pages)
    assert pages[1] == pages[2]
    data = [json.loads(re.search(r'<script[^>]* id="data">(.*?)</script>', page, re.S)[1]) for page in pages]
    assert data[0]["scores"] == data[1]["scores"]
    assert data[0]["curves"] == data[1]["curves"]
    with pytest.raises(CheckpointError, match="there is no checkpoint in"):
        fedfew.report.html(tmp_path / "nothing")


def test_the_page_says_where_a_mixture_is_what_was_scored() -> None:
    pages = {
        serve: fedfew.report.html(fedfew.train(fedfew.data.digits(3), "linear", "fedfew", rounds=1, serve=serve, device="cpu"))
        for serve in ("best", "mixture")
    }
    assert "a mixture of all models that the server offers a client" in pages["mixture"]
    assert "a mixture of all models" not in pages["best"]


def test_the_page_has_the_best_single_model_beside_a_mixture() -> None:
    run = fedfew.train(fedfew.data.digits(3), "linear", "fedfew", rounds=2, serve="mixture", temperature=9.0, device="cpu")
    scores = json.loads(re.search(r'<script[^>]* id="data">(.*?)</script>', fedfew.report.html(run), re.S)[1])["scores"]
    assert scores["single"]["mean"] == pytest.approx(float(run.history.single_accuracy[-1].mean()), abs=1e-5)
    assert scores["served"]["mean"] == pytest.approx(float(run.history.served_accuracy[-1].mean()), abs=1e-5)


def test_of_many_classes_the_most_frequent_errors_are_listed() -> None:
    matrix = np.diag(np.full(20, 5))
    matrix[3, 7], matrix[4, 1] = 15, 2
    assert class_tables.errors(matrix) == [(3, 7), (4, 1)]
    table = class_tables.confusion(matrix, [f"class {i}" for i in range(20)])
    assert [list(column.cells) for column in table.columns] == [
        ["class 3", "class 4"],
        ["class 7", "class 1"],
        ["15", "2"],
        ["75.0", "28.6"],
    ]


def test_a_score_that_no_client_has_is_a_dash_everywhere() -> None:
    """AUC needs test samples of two classes."""
    run = fedfew.train(federation((9, 8)), "linear", "fedavg", rounds=1, engine="sequential")
    table = tables.run_summary(run, {"auc": [None, None]})
    assert [list(column.cells)[-1] for column in table.columns] == ["served AUC", "–", "–", "–", "–"]


def test_tables_wider_than_the_console_are_printed_whole() -> None:
    """Rich cuts what is too wide: of 2.8e-05 it left 2.8e-0."""
    table = tables.empty("t", "model", *(f"heading {i}" for i in range(12)))
    cells = [f"{i}.8e-05" for i in range(12)]
    table.add_row("K = 1", *cells)
    console = Console(file=io.StringIO(), width=60)
    tables.show(console, table)
    assert [line.split() for line in console.file.getvalue().splitlines() if "K =" in line] == [["K", "=", "1", *cells]]
    assert console.width == 60


def test_the_caption_of_a_comparison_says_which_round_the_scores_are_of(run: fedfew.Run) -> None:
    data = replace(federation(), val=federation().train)
    best = fedfew.train(data, "linear", "fedavg", rounds=2, keep="best", engine="sequential")
    assert "Last round, mean over clients;" in " ".join(shown(tables.comparison({"one": [run]}, "title")).split())
    assert "Best round on validation data, mean over" in " ".join(shown(tables.comparison({"one": [best]}, "title")).split())


def test_weights_and_captions_are_of_the_round_in_use_and_of_those_who_took_part() -> None:
    data = replace(federation(), val=federation().train)
    run = fedfew.train(
        data, "linear", fedfew.FedFew(models=3), rounds=4, lr=3.0, keep="best", engine="sequential", participation=0.5
    )
    run.state.best = {"round": torch.tensor(2)}  # whatever came out
    diagnostics = weight_diagnostics(run.history)
    assert describe(run)["weights"]["entropy"] == pytest.approx(diagnostics.entropy[1])
    assert diagnostics.entropy[1] != pytest.approx(diagnostics.entropy[-1])
    assert f"entropy of w {diagnostics.entropy[1]:.3g} (equal weights: " in shown(tables.run_summary(run, {}), width=200)
    said = " ".join(shown(tables.comparison({"one": [run]}, "title")).split())
    assert "adapted: after the round's local training, of clients that took part in it." in said
