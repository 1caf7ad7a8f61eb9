"""The examples of one's own data run as they are written, and reach what their texts say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # other processes are started

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FEDFEW_CACHE", str(cache))
    done = subprocess.run([sys.executable, EXAMPLES / name], capture_output=True, text=True, timeout=600, cwd=cache)
    assert done.returncode == 0, done.stderr
    return done.stdout


def percent(out: str) -> dict[str, int]:
    return {name: int(number) for name, number in re.findall(r"^([\w-]+): (\d+) % correct", out, re.MULTILINE)}


def test_own_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = run("own_images.py", tmp_path, monkeypatch)
    assert list(percent(out)) == [f"camera-{i}" for i in range(4)]
    assert min(percent(out).values()) >= 90
    served = re.findall(r"served by model (\d)", out)
    assert served[0] == served[2] != served[1] == served[3]  # cameras of one kind share a model


def test_hospital_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = run("hospital_csv.py", tmp_path, monkeypatch)
    assert list(percent(out)) == ["Basel", "Bern", "Chur", "Davos"]
    assert min(percent(out).values()) >= 80  # a single model cannot use the marker
    assert "columns used: age, marker, sex, fever" in out
    found = re.search(r"new patient: ill (0\.\d+)", out)
    assert found is not None
    assert float(found.group(1)) > 0.8  # a high marker and high fever in Basel


def test_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    out = run("text.py", tmp_path, monkeypatch)
    assert list(percent(out)) == ["books", "shoes", "discount"]
    assert min(percent(out).values()) >= 90
    served = re.findall(r"served by model (\d)", out)
    assert served[0] == served[1] != served[2]


def test_regression(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = run("regression.py", tmp_path, monkeypatch)
    r2 = {name: float(number) for name, number in re.findall(r"^(\w+): R² (-?\d\.\d+)", out, re.MULTILINE)}
    assert list(r2) == ["local", "fedavg", "fedfew"]
    assert 0.3 < r2["local"] < min(r2["fedavg"], r2["fedfew"])
    assert abs(r2["fedavg"] - r2["fedfew"]) < 0.03  # as its last line says


def test_frozen_backbone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = run("frozen_backbone.py", tmp_path, monkeypatch)
    assert "the backbone is as it was: True" in out
    assert "650 of 17226 numbers sent" in out  # 64 · 10 + 10 of the head
    correct = {name: int(number) for name, number in re.findall(r"^([\w ]+): (\d+) % correct", out, re.MULTILINE)}
    assert correct["frozen backbone"] > correct["from scratch"] > 60
