"""The page of a study: its tables, figures, curves and runs in one document."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from fedfew.cli import app
from fedfew.report.page.html import page
from fedfew.studies import page as study
from fedfew.studies.page import of_study
from fedfew.studies.tables import Cell, TableData
from tests.report.browser import Page, chromium

__all__ = ["chromium"]  # a fixture

ABOUT = {
    "name": "table9",
    "title": "Two methods on <b>two</b> columns",
    "about": "All about it.",
    "tables": [{"kind": "methods"}],
}
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20"><rect width="40" height="20" fill="#0072b2"/></svg>'


TABLE = TableData(
    name="methods-fair",
    title="Accuracy",
    caption="In %.",
    protocol="fair",
    unit="%",
    columns=("digits", "cifar10"),
    rows=(
        ("FedFew", (Cell(88.256, 9.061, 0.308, 3, 89.0, 8.1, 1), Cell(None, note="not run"))),
        ("FedAvg", (Cell(70.0, 5.0, None, 1, 69.5, rank=2, paper_alike=False), Cell(50.0, rank=1))),
    ),
    notes=("a note",),
)


def run(row: str, seed: int, status: str = "done", **values: Any) -> dict[str, Any]:
    scores = {f"{score}_{name}": None for score in ("served", "adapted") for name in ("mean", "std", "min", "jain")}
    made = {
        "study": "table9",
        "protocol": "fair",
        "column": "digits",
        "row": row,
        "point": '{"models": 3}',
        "key": f"{row}-{seed}",
    }
    made |= {"status": status, "error": None, "seed": seed, "seconds": 10.0, "fedfew": "0.1.0", "torch": "2.11.0", "code": "abc"}
    return made | {"device": "cpu", "engine": "stacked", "precision": "tf32"} | scores | values


def results(runs: list[dict[str, Any]], rounds: list[dict[str, Any]]) -> Any:
    def table(rows: list[dict[str, Any]]) -> pa.Table:
        return pa.Table.from_pylist(rows)

    return SimpleNamespace(runs=table(runs), clients=table([]), rounds=table(rounds))


def small() -> Any:
    runs = [
        run("FedFew", 0, served_mean=0.9, served_std=0.05, served_min=0.8, served_jain=0.99),
        run("FedFew", 1, served_mean=0.8, served_std=0.05, served_min=0.7, served_jain=0.98),
        run("FedAvg", 0, served_mean=0.6, served_std=0.1, served_min=0.2, served_jain=0.9, protocol="published"),
        run("Ditto", 0, "failed", error="training diverged in round 3", seconds=None),
        run("Ditto", 1, "missing", error="there is no cifar10 here", seconds=None),
    ]
    rounds = [
        {"key": key, "round": number, "served_mean": value, "adapted_mean": None if number == 1 else value / 2}
        for key, values in {"FedFew-0": (0.5, 0.9), "FedFew-1": (0.3, 0.8), "FedAvg-0": (0.2, 0.6)}.items()
        for number, value in enumerate(values, 1)
    ]
    return results(runs, rounds)


def test_the_command_of_a_study_of_ones_own_names_its_file() -> None:
    assert of_study("mine", {})["reproduction"]["text"] == "fedfew study run study.yaml --folder .."
    assert of_study("quick", {})["reproduction"]["text"] == "fedfew study run quick"


def test_curves_are_means_over_seeds() -> None:
    curves = of_study("table9", ABOUT, small())["curves"]
    assert [(c["protocol"], c["row"], c["point"], c["seeds"]) for c in curves] == [
        ("fair", "FedFew", "models 3", 2),
        ("published", "FedAvg", "models 3", 1),
    ]
    assert curves[0]["rounds"] == [1, 2]
    assert curves[0]["served"] == pytest.approx([0.4, 0.85])
    assert curves[0]["adapted"] == [None, pytest.approx(0.425)]


def test_long_curves_are_thinned() -> None:
    rounds = [{"key": "a-0", "round": n, "served_mean": n / 1000, "adapted_mean": 0.5} for n in range(1, 1001)]
    curve = of_study("x", {}, results([run("a", 0)], rounds))["curves"][0]
    assert (len(curve["rounds"]), curve["rounds"][0], curve["rounds"][-1]) == (study.POINTS, 1, 1000)


def test_the_summary_counts_runs() -> None:
    summary = of_study("table9", ABOUT, small())["summary"]
    assert (summary["runs"], summary["done"], summary["failed"], summary["missing"]) == (5, 3, 1, 1)
    assert summary["seconds"] == 30
    assert summary["protocols"] == ["fair", "published"]
    assert summary["versions"]["torch"] == ["2.11.0"]
    assert (summary["seeds"], summary["score"]) == (2, "accuracy")
    assert of_study("x", {}, results([run("FedAvg", 0, score="R²")], []))["summary"]["score"] == "R²"


def test_what_made_them_is_told_of_finished_runs_alone() -> None:
    """Of the others only the settings are known: a device "cuda" and an engine "auto" have made nothing."""
    runs = [run("a", 0, device="NVIDIA H200", engine="stacked"), run("b", 0, status="missing", device="cuda", engine="auto")]
    versions = of_study("x", {}, results(runs, []))["summary"]["versions"]
    assert (versions["device"], versions["engine"]) == (["NVIDIA H200"], ["stacked"])


def test_tables_come_as_printed() -> None:
    table = of_study("table9", ABOUT, small(), [TABLE])["tables"][0]
    first, second = table["rows"][0][1], table["rows"][1][1]
    assert first[0] == {
        "value": "88.26",
        "clients": "9.06",
        "seeds": "0.31",
        "paper": "89.00",
        "paper_clients": "8.10",
        "difference": "−0.74",
        "rank": 1,
    }
    assert first[1] == {"note": "not run"}
    assert second[0] == {"value": "70.00", "clients": "5.00", "paper": "69.50", "difference": "+0.50", "rank": 2, "unlike": True}
    assert table["columns"] == ["digits", "cifar10"]


def test_one_file_of_each_figure_is_shown_while_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a-curve.svg").write_bytes(SVG)
    (tmp_path / "a-curve.png").write_bytes(b"x" * 1000)
    (tmp_path / "notes.txt").write_text("not a figure")
    (tmp_path / "b.png").write_bytes(b"y" * 500)
    monkeypatch.setattr(study, "FIGURES", 400)
    document = of_study("x", {}, figures=list(tmp_path.iterdir()))
    assert [figure["name"] for figure in document["figures"]] == ["a curve"]
    assert document["figures"][0]["data"] == "data:image/svg+xml;base64," + base64.b64encode(SVG).decode()
    assert document["figures_left_out"] == ["b.png"]


def test_a_large_study_stays_below_five_megabytes() -> None:
    runs = [run(f"method {i % 10}", i // 90, column=f"column {i % 9}", key=f"k{i}", error="e" * 900) for i in range(2700)]
    rounds = [
        {"key": f"k{i}", "round": r, "served_mean": 0.123456, "adapted_mean": 0.654321} for i in range(900) for r in range(1, 81)
    ]
    assert len(page(of_study("x", ABOUT, results(runs, rounds), [TABLE] * 20))) < 5_000_000


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A study's folder; what reads its results and makes its tables is stood in for."""
    place = tmp_path / "studies" / "table9"
    (place / "figures").mkdir(parents=True)
    (place / "study.yaml").write_text(json.dumps(ABOUT))
    (place / "runs.parquet").touch()
    (place / "figures" / "a.svg").write_bytes(SVG)

    def tables(specs: Any, found: Any, name: str) -> list[Any]:
        assert (specs, name) == ([{"kind": "methods"}], "table9")
        return [TABLE]

    monkeypatch.setattr("fedfew.studies.store.read", lambda folder: small())
    monkeypatch.setattr("fedfew.studies.page.make_tables", tables)
    return place


def report(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["report", *words], prog_name="fedfew")
    assert result.exit_code == code, result.output
    return " ".join((result.stdout + result.stderr).split())


def test_the_command_takes_a_study(folder: Path, tmp_path: Path) -> None:
    report(str(folder))
    text = (folder / "report.html").read_text()
    assert "88.26" in text  # of the table
    assert "<b>two" not in text
    assert not re.search(r'src="http|href="http', text)
    assert "is not a study, but holds 1; give one: " + str(folder) in report(str(tmp_path / "studies"), code=2)


def test_a_study_is_not_watched(folder: Path) -> None:
    result = CliRunner().invoke(app, ["watch", str(folder)], prog_name="fedfew")
    assert result.exit_code == 2
    assert "is a study: 'fedfew report" in " ".join(result.stderr.split())


def test_a_study_without_runs_shows_its_pictures(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text("name: theory\ntitle: Theory\ncall: 'fedfew.studies.theory:study'")
    (tmp_path / "theory.svg").write_bytes(SVG)
    report(str(tmp_path))
    text = (tmp_path / "report.html").read_text()
    document = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert document["summary"]["runs"] == 0
    assert [figure["name"] for figure in document["figures"]] == ["theory"]


@pytest.mark.slow
def test_in_a_browser(chromium: Any, folder: Path) -> None:
    report(str(folder))
    browser = Page(chromium)
    for width, theme in ((375, "dark"), (1280, "light")):
        browser.resize(width, theme)
        browser.open(folder / "report.html")
        assert browser.do("return document.documentElement.scrollWidth") <= width
    assert browser.text("h1") == ABOUT["title"]
    assert browser.do("return document.images[0].naturalWidth") == 40
    assert browser.text("#tables strong") == "88.26"
    assert browser.text("#tables u") == "70.00"
    assert "paper 69.50, +0.50 (scored the other way)" in browser.text("#tables table")
    assert browser.text("#runs-count") == "5 runs of 5."
    browser.find("#runs-words").send_keys("diverged")
    assert browser.text("#runs-count") == "1 run of 5."
    assert "training diverged in round 3" in browser.text("#runs tbody")
    browser.find("#runs-words").clear()
    browser.do("const s = document.querySelector('#runs-protocol'); s.value = 'published'; s.dispatchEvent(new Event('change'))")
    assert browser.text("#runs tbody th") == "FedAvg"
    browser.wait("return document.querySelectorAll('#curves .plot path.line').length == 1")
    assert browser.text("#curves .readout") == "round 2: FedFew, models 3 85.0 %"
    browser.do("const s = document.querySelector('#curve-place'); s.selectedIndex = 1; s.dispatchEvent(new Event('change'))")
    assert browser.text("#curves .readout") == "round 2: FedAvg, models 3 60.0 %"
    assert browser.console() == []
