"""The benchmark from the start of a process to an accuracy, on made-up images."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "time_to_quality.py"
pytestmark = pytest.mark.slow


def run(*arguments: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run([sys.executable, str(SCRIPT), "--quick", *arguments], capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout)["measured"]


def test_the_parts_add_up_to_the_whole_and_the_run_ends_at_the_target(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    code, row = run("--append", str(file))
    assert code == 0
    assert row["seconds"] == pytest.approx(sum(row["parts"].values()))
    assert min(row["parts"].values()) > 0
    counted = [seconds for name, seconds in row["of_first_round"].items() if "other threads" not in name]
    assert sum(counted) == pytest.approx(row["parts"]["first_round"])
    assert {"record", "trial, sequential"} <= row["of_first_round"].keys()
    assert row["served"] >= 0.85
    assert all(served < 0.85 for *_, served in row["scored"][:-1])
    assert row["rounds"] < row["settings"]["rounds"]
    assert json.loads(file.read_text())["measured"] == row


def test_a_target_that_is_not_reached_is_a_failure() -> None:
    code, row = run("--target", "1.01", "--rounds", "20")
    assert code == 1
    assert row["seconds"] is None
    assert row["rounds"] == row["settings"]["rounds"]
