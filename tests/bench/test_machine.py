"""The machine described, and what it could do."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import get_args

import pytest
import torch

from fedfew.bench import machine
from fedfew.config import Precision
from fedfew.util.cores import torch_threads

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


def test_peaks_are_known_for_every_precision() -> None:
    for known in (*machine.PEAKS.values(), machine.DTYPES):
        assert set(known) == set(get_args(Precision))


@pytest.mark.slow
def test_the_peak_of_a_cpu_is_measured() -> None:
    peak, source = machine.peak_tflops(CPU, "fp32")
    assert source == "measured"
    assert peak > 0


def test_a_measured_product_leaves_the_settings_as_they_were() -> None:
    before = torch.backends.cuda.matmul.allow_tf32
    assert machine.measured_tflops(CPU, "tf32", size=64, repeats=1) > 0
    assert torch.backends.cuda.matmul.allow_tf32 == before


@pytest.mark.parametrize(("together", "apart", "seconds"), [(4.0, 2.0, 2.0), (2.0, 4.0, 2.0)])
def test_the_peak_is_of_the_better_way_to_use_the_threads(
    together: float, apart: float, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine ``threaded`` computes one product per thread, which is faster than one for all where threads are held up: its
    share of a peak that was measured in the other way could be above 100 %."""
    monkeypatch.setattr(machine, "_seconds", lambda device, product, a, b: together)
    monkeypatch.setattr(machine, "_seconds_side_by_side", lambda product, a, b: apart)
    assert machine.measured_tflops(CPU, "fp32", size=10) == pytest.approx(2e-12 * 10**3 / seconds)


@pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this PyTorch comes without oneDNN")
@pytest.mark.parametrize("by_onednn", [1.0, 9.0])
def test_the_peak_is_of_the_faster_library(by_onednn: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch multiplies by MKL and convolves by oneDNN, which is twice as fast on AMD's processors: a round of convolutions
    reached 147 % of the peak of MKL's products."""
    products = machine._products(CPU, torch.float32)
    a, b = torch.randn(2, 8, 8)
    torch.testing.assert_close([product(a, b) for product in products], [a @ b, a @ b.T])
    assert len(machine._products(CPU, torch.bfloat16)) == 1
    monkeypatch.setattr(machine, "_seconds", lambda device, product, a, b: 3.0 if product is torch.matmul else by_onednn)
    monkeypatch.setattr(machine, "_seconds_side_by_side", lambda product, a, b: 5.0)
    assert machine.measured_tflops(CPU, "fp32", size=10) == pytest.approx(2e-12 * 10**3 / min(3.0, by_onednn))


def test_products_side_by_side_are_as_many_as_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that a product moves by 3 seconds: three threads take 9 for their three products, 3 for each."""
    clock = [0.0]

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        assert torch.get_num_threads() == 1
        clock[0] += 3.0
        return a

    monkeypatch.setattr(machine.time, "perf_counter", lambda: clock[0])
    with torch_threads(3):
        assert machine._seconds_side_by_side(product, torch.ones(1), torch.ones(1)) == 3.0
        assert torch.get_num_threads() == 3


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux lets the peak begin anew")
def test_the_peak_of_memory_is_that_of_the_process() -> None:
    Path("/proc/self/clear_refs").write_text("5")  # what earlier tests have held does not count
    before = machine.peak_rss()
    block = torch.ones(2**24)  # four bytes each
    assert machine.peak_rss() >= before + 2**25
    assert block[0] == 1
