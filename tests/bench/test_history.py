"""Figures kept, and the table made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedfew.bench import history
from tools import benchmark_history

MACHINE = {
    "cpu": "Some CPU",
    "cores": 2,
    "threads": 1,
    "memory_gib": 8.0,
    "gpu": None,
    "python": "3.11",
    "torch": "2.13",
    "fedfew": "0.1.0",
}
WAY = {
    "engine": "stacked",
    "precision": "fp32",
    "seconds": 0.0123,
    "times_the_oracle": 14.8,
    "tflops": 0.0096,
    "share_of_peak": 0.102,
    "peak_bytes": 400 * 2**20,
    "difference": 1.2e-6,
}


def entry(note: str = "", **machine: Any) -> dict[str, Any]:
    workload = {"name": "digits-mlp", "clients": 20, "models": 3, "samples": 1340}
    failed = {"engine": "other", "precision": "fp32", "error": "out of memory"}
    return {
        "format": 1,
        "date": "2026-01-02",
        "note": note,
        "machine": MACHINE | machine,
        "workloads": [workload | {"variants": [WAY, failed]}],
    }


def test_the_table_says_every_figure_and_names_machines_once(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "history.jsonl"
    card = {"gpu": "NVIDIA H200", "gpu_memory_gib": 140.0, "cuda": "13.0"}
    for written in (entry("first"), entry("second"), entry("third", **card)):
        history.append(file, written)
    table = benchmark_history.table(benchmark_history.read(file))
    lines = table.splitlines()
    assert len(lines) == 2 + 3 + 1 + 2  # head, three measured variants, a blank line, two machines
    assert lines[2].split(" | ")[-1] == "third |"
    cells = (
        "| B | digits-mlp 20 × 3, 1,340 samples | stacked | fp32 "
        "| 12.3 ms | 14.80 | 327,000 | 0.0096 | 10.2% | 400 MiB | 1e-06 | second |"
    )
    assert lines[3].endswith(cells)
    assert "other" not in table
    assert lines[-2].startswith("- **A**: NVIDIA H200 (140.0 GiB, CUDA 13.0), Some CPU")


def test_the_readme_is_brought_up_to_date(tmp_path: Path) -> None:
    history.append(tmp_path / "history.jsonl", entry("kept"))
    page = tmp_path / "README.md"
    page.write_text(f"before\n{benchmark_history.BEGIN}\nold\n{benchmark_history.END}\nafter\n")
    benchmark_history.write(tmp_path)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| kept |" in text
    page.write_text("no markers")
    with pytest.raises(ValueError, match=r"README\.md must have"):
        benchmark_history.write(tmp_path)


def test_another_format_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    file.write_text("\n" + json.dumps(entry() | {"format": 99}) + "\n")
    with pytest.raises(ValueError, match="line 2: format is 99, not 1"):
        benchmark_history.read(file)


def test_the_table_in_the_repository_is_that_of_its_history() -> None:
    folder = Path(__file__).parents[2] / "benchmarks"
    table = benchmark_history.table(benchmark_history.read(folder / "history.jsonl"))
    assert f"{benchmark_history.BEGIN}\n{table}\n{benchmark_history.END}" in (folder / "README.md").read_text(encoding="utf-8")


def test_other_benchmarks_have_a_table_of_their_own(tmp_path: Path) -> None:
    row = history.measured({"benchmark": "time to 85 % served", "result": "after 9.5 s"}, torch.device("cpu"), "first")
    file = tmp_path / "history.jsonl"
    for written in (entry("kept"), row):
        history.append(file, written)
    variants, others, machines = benchmark_history.table(benchmark_history.read(file)).split("\n\n")
    assert "time to 85" not in variants
    assert others.splitlines()[0] == "| date | machine | benchmark | result | note |"
    assert others.splitlines()[2:] == [f"| {row['date']} | A | time to 85 % served | after 9.5 s | first |"]
    assert machines.count("**") == 4
