"""The benchmark of adapters at tiny sizes: bytes by hand, and both engines train alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.adapters import QUICK, ROWS, main

import fedfew


@pytest.mark.slow
def test_both_engines_train_alike_and_adapters_are_what_is_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lora, sequential, whole, _ = main(["--quick", "--output", str(tmp_path), "--device", "cpu"])
    assert lora["loss"] == pytest.approx(sequential["loss"], rel=1e-5)
    adapters = QUICK.blocks * 2 * QUICK.rank * 2 * QUICK.width + (QUICK.width + 1) * 4  # of query and value, and the head
    assert lora["bytes_down"] == 4 * QUICK.clients * QUICK.models * adapters
    written = json.loads((tmp_path / "adapters.json").read_text())
    assert [row["name"] for row in written["rows"]] == [row.name for row in ROWS]
    assert whole["bytes_down"] == 4 * QUICK.clients * QUICK.models * written["parameters"]
    assert (tmp_path / "adapters.md").read_text() in capsys.readouterr().out


def test_a_row_that_does_not_fit_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise MemoryError("the GPU's memory is full")

    monkeypatch.setattr(fedfew, "train", full)
    (row,) = main(["--quick", "--rows", "LoRA, stacked", "--device", "cpu"])
    assert row["error"] == "out of memory: the GPU's memory is full"
    assert "| LoRA, stacked | out of memory: the GPU's memory is full |" in capsys.readouterr().out
