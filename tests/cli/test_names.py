"""Names of clients from the data, wherever a person reads results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from PIL import Image

import fedfew
from fedfew.report import html
from tests import hospitals
from tests.helpers import call, refused

pytestmark = pytest.mark.usefixtures("wide")
FLAGS = ["--rounds", "3", "--models", "2", "--model", "linear", "--device", "cpu", "--engine", "sequential"]
SHOWN = ("=Basel", r"[bold]Bern\x1b[31m", "$Chur_$")  # as a terminal gets them


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("hospitals")
    data = fedfew.data.load(hospitals.write(place / "patients.csv"), label="diagnosis", client="hospital")
    fedfew.data.write_prepared(data, place / "patients.fed")
    return place


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    call("run", "--dataset", str(folder / "patients.fed"), *FLAGS, "--folder", str(folder / "run"))
    return folder / "run"


def worst(run: Path) -> str:
    scores = fedfew.load(run).history.last("served_accuracy")
    return SHOWN[int(scores.argmin())]


def test_the_worst_served_client_has_its_name_on_the_terminal(folder: Path, run: Path) -> None:
    shown = call("show", str(run)).stdout
    (served,) = re.findall(r"served accuracy.*", shown)
    assert f"({worst(run)})" in served
    assert all(name in shown for name in SHOWN)
    assert "\x1b" not in shown
    again = call("run", "--dataset", str(folder / "patients.fed"), *FLAGS, "--folder", str(folder / "again")).stdout
    assert f"({worst(run)})" in again


def test_json_has_the_names_as_they_are(run: Path) -> None:
    document = json.loads(call("show", str(run), "--json").stdout)
    assert [client["name"] for client in document["clients"]] == list(hospitals.NAMES)


@pytest.mark.slow
def test_compare_names_the_worst_client(folder: Path) -> None:
    words = ["compare", "--dataset", str(folder / "patients.fed"), "--methods", "fedavg", *FLAGS[:2], *FLAGS[4:]]
    shown = call(*words, "--folder", str(folder / "compared")).stdout
    (served,) = re.findall(r"^\s*fedavg\s+served.*", shown, re.M)
    assert f"({worst(folder / 'compared' / 'fedavg-0')})" in served
    document = json.loads(call(*words, "--folder", str(folder / "compared-2"), "--json").stdout)
    named = document["methods"]["fedavg"]["seeds"]["0"]["worst_client"]["served"]
    assert SHOWN[hospitals.NAMES.index(named)] in served


def test_pictures_have_the_names(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    ticks: list[str] = []
    monkeypatch.setattr(Axes, "set_yticks", lambda self, at, labels=(), **look: ticks.extend(labels))
    call("show", str(run), "--png", str(tmp_path / "curves.png"))
    assert ticks == ["=Basel", r"[bold]Bern\x1b[31m", r"\$Chur_\$"]


def test_a_name_with_dollars_is_drawn(run: Path, tmp_path: Path) -> None:
    call("show", str(run), "--png", str(tmp_path / "curves.png"))
    with Image.open(tmp_path / "curves.png") as picture:
        assert picture.size[0] > 600


def test_the_report_has_the_names(run: Path) -> None:
    for page in (html(run), html(fedfew.load(run))):
        found = re.search(r'<script[^>]* id="data">(.*?)</script>', page, re.S)
        assert found is not None
        assert json.loads(found[1])["names"] == list(SHOWN)
        assert "\x1b" not in page


def test_classes_on_the_terminal(run: Path) -> None:
    shown = call("show", str(run), "--classes").stdout
    finished = fedfew.load(run)
    matrix = finished.confusion()
    assert "test samples of all clients, %" in shown
    (ill,) = re.findall(r"^ ?ill +(\d+) +(\S+) +(\S+) +(\S+)", shown, re.M)
    recall, precision = matrix[0, 0] / matrix[0].sum(), matrix[0, 0] / matrix[:, 0].sum()
    assert ill[:3] == (str(matrix[0].sum()), f"{100 * recall:.1f}", f"{100 * precision:.1f}")
    (row,) = re.findall(r"^ ?well +([\d·]+) +([\d·]+) *$", shown, re.M)
    assert [0 if cell == "·" else int(cell) for cell in row] == matrix[1].tolist()
    one = json.loads(call("show", str(run), "--client", "=Basel", "--json").stdout)
    assert one["confusion"] == finished.confusion("=Basel").tolist()
    assert [entry["class"] for entry in one["classes"]] == list(hospitals.CLASSES)
    assert sum(entry["samples"] for entry in one["classes"]) == finished.confusion(0).sum()
    assert r"client [bold]Bern\x1b[31m" in call("show", str(run), "--client", hospitals.NAMES[1]).stdout
    assert "client 'Genf' took no part" in refused("show", str(run), "--client", "Genf")


def test_export_says_what_it_holds_of_single_clients(run: Path, tmp_path: Path) -> None:
    said = call("export", str(run), "-o", str(tmp_path / "e")).stdout
    assert "It holds of single clients: the model each uses, its name, means and standard deviations of its columns" in said
    assert "single clients" not in call("export", str(run), "-o", str(tmp_path / "a"), "--anonymous").stdout
