"""The machine described, and what it could do."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import torch

from fedfew.bench import machine

CPU = torch.device("cpu")


def test_a_description_says_what_counts_and_names_nobody() -> None:
    about = machine.describe(CPU)
    assert about["torch"] == torch.__version__
    assert about["threads"] == torch.get_num_threads()
    assert about["gpu"] is None
    assert about["cpu"]
    assert socket.gethostname() not in str(about)


@pytest.mark.parametrize(
    ("name", "peak"), [("NVIDIA H200", 67), ("NVIDIA H200 NVL", 60), ("NVIDIA H100 PCIe", 51), ("NVIDIA A100-SXM4-80GB", 19.5)]
)
def test_stated_peaks_by_the_cards_name(name: str, peak: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert machine.peak_tflops(torch.device("cuda"), "fp32") == (peak, "stated")


@pytest.mark.slow
def test_the_peak_of_a_cpu_is_measured() -> None:
    peak, source = machine.peak_tflops(CPU, "fp32")
    assert source == "measured"
    assert peak > 0


def test_a_measured_product_leaves_the_settings_as_they_were() -> None:
    before = torch.backends.cuda.matmul.allow_tf32
    assert machine.measured_tflops(CPU, "tf32", size=64, repeats=1) > 0
    assert torch.backends.cuda.matmul.allow_tf32 == before


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux lets the peak begin anew")
def test_the_peak_of_memory_is_that_of_the_process() -> None:
    Path("/proc/self/clear_refs").write_text("5")  # what earlier tests have held does not count
    before = machine.peak_rss()
    block = torch.ones(2**24)  # four bytes each
    assert machine.peak_rss() >= before + 2**25
    assert block[0] == 1
