"""A table with numbers as labels: from the file to scores, pictures, exports and predictions."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from fedfew import export
from tests.helpers import call, refused


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three hospitals, one of which measures with the opposite sign, and a finished run on their data."""
    place = tmp_path_factory.mktemp("regression")
    rng = np.random.default_rng(0)
    with open(place / "stay.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["hospital", "age", "weight", "days"])
        for row in range(180):
            hospital, age, weight = "ABC"[row % 3], rng.normal(), rng.normal()
            writer.writerow([hospital, f"{age:.4f}", f"{weight:.4f}", f"{(-1 if hospital == 'C' else 1) * age + 0.5:.4f}"])
    run = call(
        *("run", "--dataset", str(place / "stay.csv"), "--client", "hospital", "--label", "days", "--models", "2"),
        *("--rounds", "25", "--lr", "0.1", "--device", "cpu", "--folder", str(place / "run")),
    )
    assert "the labels are numbers that are not all whole: the task is regression" in run.output
    assert "served R²" in run.output
    assert "served MAE" in run.output
    return place


def test_tables_name_the_score(place: Path) -> None:
    shown = call("show", str(place / "run")).output
    assert "3 clients, 1 target" in shown
    assert "clients (R² in %)" in shown
    document = json.loads(call("show", str(place / "run"), "--json").stdout)
    assert document["score"] == "R²"
    assert document["scores"]["served"]["mean"] > 0.9


def test_large_targets_are_named_where_training_diverges_in_its_first_round(place: Path) -> None:
    rows = (place / "stay.csv").read_text().splitlines()
    large = [rows[0], *(f"{inputs},{1e6 * float(days)}" for inputs, _, days in (row.rpartition(",") for row in rows[1:]))]
    (place / "cost.csv").write_text("\n".join(large))
    data = ("--dataset", str(place / "cost.csv"), "--client", "hospital", "--label", "days")
    answer = call("run", *data, "--rounds", "2", "--folder", str(place / "cost"), code=2).stderr.replace("\n", " ")
    assert "training diverged in round 1" in answer
    assert "standardise the targets, or lower lr" in answer


def test_the_report_names_the_score(place: Path) -> None:
    call("report", str(place / "run"))
    page = (place / "run" / "report.html").read_text()
    assert '"score": "R²"' in page.replace('":"', '": "')
    assert "The targets are numbers: there are no labels to count." in page


def test_an_export_predicts_numbers_and_says_what_they_are(place: Path) -> None:
    call("export", str(place / "run"), "-o", str(place / "models"))
    assert "R² on the clients' own test samples" in (place / "models" / "README.md").read_text()
    (place / "new.csv").write_text("hospital,age,weight\nA,1.0,0\nC,1.0,0\n")
    answers = call("predict", str(place / "models"), "--data", str(place / "new.csv")).stdout.splitlines()
    assert answers[0] == "row,client,prediction"
    predicted = [float(line.split(",")[-1]) for line in answers[1:]]
    assert predicted[0] > predicted[1]  # the signs differ
    same = export.read(place / "models").predict({"age": [1.0], "weight": [0.0]}, "A")
    assert same.shape == (1,)
    assert same[0] == pytest.approx(predicted[0], abs=1e-4)
    assert "these models give numbers: use predict" in refused(
        "predict", str(place / "models"), "--data", str(place / "new.csv"), "--proba"
    )


def test_a_new_client_chooses_by_the_loss_of_the_run(place: Path) -> None:
    rows = [line for line in (place / "stay.csv").read_text().splitlines() if not line.startswith("hospital")]
    mine = [line.split(",", 1)[1] for line in rows if line.startswith("C")]
    (place / "mine.csv").write_text("\n".join(["age,weight,days", *mine]) + "\n")
    chosen = json.loads(call("select", str(place / "run"), "--data", str(place / "mine.csv"), "--json").stdout)
    losses = [one["loss"] for one in chosen["models"]]
    assert chosen["model"] == int(np.argmin(losses))
    assert chosen["before"]["score"] > 0.9
    assert "R², %" in call("select", str(place / "run"), "--data", str(place / "mine.csv")).output


def test_whole_numbers_are_a_regression_where_the_loss_says_so(tmp_path: Path) -> None:
    table = tmp_path / "counts.csv"
    table.write_text("site,x,y\n" + "".join(f"{'ab'[i % 2]},{i / 10},{i % 7}\n" for i in range(40)))
    words = (
        "run",
        "--dataset",
        str(table),
        "--client",
        "site",
        "--models",
        "2",
        "--rounds",
        "1",
        "--device",
        "cpu",
        "--json",
        "--lr",
        "0.001",
    )
    told = json.loads(call(*words, "--loss", "mae", "--recipe", "strong", "--folder", str(tmp_path / "a")).stdout)
    assert told["settings"]["federation"]["task"] == "regression"
    assert (told["settings"]["loss"], told["settings"]["label_prior"]) == ("mae", "none")
    told = json.loads(call(*words, "--folder", str(tmp_path / "b")).stdout)
    assert told["settings"]["federation"]["task"] == "classification"
    assert "loss must be auto, cross-entropy" in refused(*words, "--loss", "l2")


def test_numbers_found_in_the_data_leave_the_recipes_label_prior_out(place: Path) -> None:
    words = (
        "--dataset",
        str(place / "stay.csv"),
        "--client",
        "hospital",
        "--label",
        "days",
        "--recipe",
        "strong",
        "--rounds",
        "1",
    )
    shown = call("run", *words, "--models", "2", "--device", "cpu", "--folder", str(place / "strong")).output
    assert "recipe strong without a label prior, which is for classes: the task is regression" in shown
    assert "label_prior: none" in (place / "strong" / "config.yaml").read_text()
    call("compare", *words, "--methods", "fedavg", "--seeds", "1", "--device", "cpu", "--folder", str(place / "compared"))


def test_data_show_describes_numbers(place: Path) -> None:
    shown = call("data", "show", str(place / "stay.csv"), "--client", "hospital", "--label", "days").output
    assert "mean" in shown
    assert "std" in shown


def test_a_loss_of_ones_own_and_several_targets(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "loss_for_cli.py").write_text("def close(outputs, y):\n    return (outputs - y).abs().mean(1)\n")
    monkeypatch.chdir(place)
    rng = np.random.default_rng(1)
    x = rng.normal(size=(30, 2)).astype(np.float32)
    np.savez(place / "two.npz", x=x, y=x * [1.0, 2.0], site=np.arange(30) % 2)
    words = ("run", "--dataset", "two.npz", "--partition", "by:site", "--method", "fedavg", "--rounds", "1", "--device", "cpu")
    told = json.loads(call(*words, "--loss", "loss_for_cli:close", "--folder", "two", "--json").stdout)
    assert told["settings"]["loss"] == "loss_for_cli:close"
    assert "there is no function in loss_for_cli called 'far'" in refused(*words, "--loss", "loss_for_cli:far")
    np.savez(place / "new.npz", x=x[:3])
    head, *rows = call("predict", "two", "--data", "new.npz").stdout.splitlines()
    assert head == "row,prediction of 0,prediction of 1"
    assert len(rows) == 3


def test_several_label_columns_from_a_table(place: Path) -> None:
    table = str(place / "scans.csv")
    rng = np.random.default_rng(2)
    with open(table, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["hospital", "age", "pneumonia", "oedema"])
        writer.writerows(["AB"[row % 2], f"{(age := rng.normal()):.4f}", int(age > 0), int(abs(age) > 1)] for row in range(60))
    data = ("--dataset", table, "--client", "hospital", "--label", "pneumonia", "--label", "oedema")
    settings = ("--method", "fedavg", "--rounds", "2", "--device", "cpu")
    told = json.loads(call("run", *data, *settings, "--folder", str(place / "scans"), "--json").stdout)
    assert told["settings"]["federation"]["task"] == "multi-label"
    assert told["settings"]["federation"]["shape"] == [1]  # the age alone: no label is an input
    answers = list(csv.DictReader(call("predict", str(place / "scans"), "--data", table, "--labels", table).stdout.splitlines()))
    assert len(answers) == 60
    assert {row[f"prediction of {label}"] for row in answers for label in ("pneumonia", "oedema")} == {"0", "1"}
    assert "micro-F1" in call("select", str(place / "scans"), "--data", table, "-o", str(place / "scans.safetensors")).output
    answer = refused("select", str(place / "scans"), "--data", table, "--label", "oedema", "-o", str(place / "one.safetensors"))
    assert "y has 1 targets or labels per sample, but the models have 2 outputs" in answer
    answer = refused("select", str(place / "scans"), "--data", str(place / "stay.csv"), "-o", str(place / "one.safetensors"))
    assert "the columns 'pneumonia', 'oedema' are needed" in answer


@pytest.fixture
def words(place: Path) -> tuple[str, ...]:
    """Settings with which FedProx diverges where its μ is large: from step to step by a factor of lr·μ."""
    data = ("--dataset", str(place / "stay.csv"), "--client", "hospital", "--label", "days")
    return (*data, "--rounds", "2", "--lr", "0.01", "--batch-size", "23", "--device", "cpu")


def test_a_run_with_infinite_scores_is_shown_and_exported(words: tuple[str, ...], tmp_path: Path) -> None:
    """R² is −∞ where squares of the outputs overflow; each of these commands ended with an error about values."""
    folder = str(tmp_path / "run")
    made = call("run", *words, "--method", "fedprox", "--mu", "1e7", "--folder", folder)
    line = "round 2: training diverges, infinite scores of clients 0, 1, 2. Lower lr, or standardise the targets"
    assert line in made.stdout
    shown = call("show", folder, "--png", str(tmp_path / "curves.png")).stdout
    assert line in shown
    assert "−∞ (A)" in shown
    document = json.loads(call("show", folder, "--json").stdout)
    assert document["scores"]["served"]["mean"] is None
    assert document["curve"]["served"][0] < 0
    call("report", folder)
    assert line in (tmp_path / "run" / "report.html").read_text()
    call("export", folder, "-o", str(tmp_path / "models"))
    card = json.loads((tmp_path / "models" / "card.json").read_text(), parse_constant=pytest.fail)
    assert card["scores"]["served"]["mean"] is None
    readme = (tmp_path / "models" / "README.md").read_text()
    assert "| served | – ± – | – | – | 3 |" in readme
    assert "–: not a finite number, as where training diverges." in readme


def test_a_method_that_diverges_costs_no_other_its_row(words: tuple[str, ...], tmp_path: Path) -> None:
    ends, infinite = "fedprox:mu=1e9", "fedprox:mu=1e7"
    methods = ("--methods", f"{ends},fedavg,{infinite}", "--folder", str(tmp_path / "all"))
    result = call("compare", *words, *methods, code=1)
    assert f"note: {ends}, seed 0 is left out: training diverged in round 2" in result.stdout
    rows = [line.split() for line in result.stdout.partition("worst client")[2].partition("costs of")[0].splitlines()]
    (mean,) = (row[2] for row in rows if row[:2] == ["fedavg", "served"])
    assert float(mean) > -1e3
    (mean,) = (row[2] for row in rows if row[:2] == [infinite, "served"])
    assert mean == "−∞"
    assert "−∞: training diverged there; lower lr" in " ".join(result.stdout.split())
    document = json.loads(call("compare", "--resume", "--folder", str(tmp_path / "all"), "--json", code=1).stdout)
    assert list(document["methods"]) == ["fedavg", infinite]
    assert list(document["diverged"]) == [f"{ends}, seed 0"]


def test_a_comparison_of_which_nothing_is_left_is_an_error(words: tuple[str, ...], tmp_path: Path) -> None:
    answer = call("compare", *words, "--methods", "fedprox:mu=1e9", "--folder", str(tmp_path / "none"), code=2)
    assert "Error: training diverged in round 2" in " ".join(answer.stderr.split())
