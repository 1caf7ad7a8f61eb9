"""``fedfew bench``: what it prints, and its document."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from fedfew.bench import memory
from fedfew.cli.flags import complete_workload
from tests import helpers


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(memory, "of_a_process", lambda workload, variant: 100 * 2**20)  # a process each would take long


call = partial(helpers.call, "bench")


@pytest.mark.slow
def test_one_document_with_the_machine_described(tmp_path: Path) -> None:
    words = ("digits-mlp", "--quick", "--device", "cpu", "--json", "--append", "kept.jsonl", "--note", "a test")
    document = json.loads(call(*words).stdout)
    assert document.keys() == {"format", "date", "note", "machine", "workloads"}
    assert document["machine"].keys() >= {"cpu", "cores", "threads", "gpu", "torch", "fedfew"}
    (workload,) = document["workloads"]
    assert workload["name"] == "digits-mlp"
    assert workload["samples"] == 4 * 20
    named = {
        "engine",
        "precision",
        "seconds",
        "all_seconds",
        "tflops",
        "share_of_peak",
        "peak_bytes",
        "times_the_oracle",
        "difference",
    }
    for variant in workload["variants"]:
        assert variant.keys() >= named
        assert len(variant["all_seconds"]) == 1
    assert [variant["engine"] for variant in workload["variants"]][:2] == ["sequential", "stacked"]
    assert json.loads((tmp_path / "kept.jsonl").read_text()) == document


@pytest.mark.slow
def test_a_table_of_eighty_columns(tmp_path: Path) -> None:
    output = call("digits-mlp", "--quick", "--device", "cpu", "--repeats", "2", "--clients", "3", "--append", "kept.jsonl").stdout
    assert "digits-mlp on cpu: 3 clients × 2 models, 60 samples (20 each)" in " ".join(output.split())
    assert "repeat 2 of 2" in output
    (row,) = [line for line in output.splitlines() if line.strip().startswith("stacked fp32")]
    assert "100 MiB" in row
    assert "Added to kept.jsonl" in output


def test_mistakes_are_told_in_words() -> None:
    assert "did you mean 'digits-mlp'" in call("digit-mlp", code=2).stderr
    assert "clients must be ≥ 1" in call("digits-mlp", "--clients", "0", code=2).stderr
    assert "precision must be fp32" in call("--device", "cpu", "--precision", "bf16", code=2).stderr


def test_names_are_completed() -> None:
    assert complete_workload("c") == ["cifar-cnn"]
    assert complete_workload("a") == ["all"]
