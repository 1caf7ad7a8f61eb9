"""The study as a whole: all statements, and what it writes."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from fedfew.studies import theory
from fedfew.studies.theory import statements
from fedfew.studies.theory.check import FAILS, HOLDS

pytestmark = pytest.mark.slow  # one study of fifteen seconds; its parts are tested in the other files


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bool, str]:
    folder = tmp_path_factory.mktemp("theory") / "below"
    console = Console(file=io.StringIO(), width=140, record=True)
    return folder, theory.study(folder, console, seed=1), console.export_text()


def test_every_corrected_statement_holds(made: tuple[Path, bool, str]) -> None:
    folder, holds, _ = made
    document = json.loads((folder / statements.FILE).read_text())
    assert holds is True
    assert document["holds"] is True
    assert [c["name"] for c in document["checks"] if not c["holds"]] == []
    assert all(c["margin"] >= -1e-9 and c["cases"] >= 1 for c in document["checks"])


def test_what_is_printed_is_judged_by_its_cases(made: tuple[Path, bool, str]) -> None:
    for check in json.loads((made[0] / statements.FILE).read_text())["checks"]:
        if check["verdict"] == HOLDS:
            assert check["violations"] == 0, check["name"]
        if check["verdict"] == FAILS:
            assert check["violations"] > 0, check["name"]


def test_starved_models_occur_without_being_made(made: tuple[Path, bool, str]) -> None:
    """Descent on g from random starts leaves models with hardly any weight, and these are the ones that are not stationary."""
    checks = {c["name"]: c for c in json.loads((made[0] / statements.FILE).read_text())["checks"]}
    numbers = checks["Pareto stationarity"]["numbers"]
    starved = [(w, d) for w, d in zip(numbers["weight"], numbers["distance"], strict=True) if d > 1e-3]
    assert len(starved) > 1
    assert all(weight < 1e-3 for weight, _ in starved)
    assert max(checks["the same, weights normalised"]["numbers"]["distance"]) < 1e-3


def test_pictures_and_table(made: tuple[Path, bool, str]) -> None:
    folder, _, text = made
    assert (folder / "theory.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / "theory.svg").read_text()
    assert text.count("holds") >= 14
    assert "tanh" in text


def test_the_name_stays_a_function_after_a_call(made: tuple[Path, bool, str]) -> None:
    assert callable(theory.study)
