"""This machine: its description, and its peak FLOP/s."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from fedfew._version import __version__
from fedfew.util.cores import torch_threads

# Dense peaks in TFLOP/s as the makers state them (without sparsity, sums in float32), by torch's name of the card; longer names
# come first.
PEAKS: dict[str, dict[str, float]] = {
    "H200 NVL": {"fp32": 60, "tf32": 418, "bf16": 836, "fp16": 836},
    "H200": {"fp32": 67, "tf32": 494, "bf16": 989, "fp16": 989},
    "H100 PCIe": {"fp32": 51, "tf32": 378, "bf16": 756, "fp16": 756},
    "H100": {"fp32": 67, "tf32": 494, "bf16": 989, "fp16": 989},
    "A100": {"fp32": 19.5, "tf32": 156, "bf16": 312, "fp16": 312},
    "L40S": {"fp32": 91.6, "tf32": 183, "bf16": 362, "fp16": 362},
    "RTX 4090": {"fp32": 82.6, "tf32": 82.6, "bf16": 165, "fp16": 165},
    "RTX 3090": {"fp32": 35.6, "tf32": 35.6, "bf16": 71, "fp16": 71},
}
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def describe(device: torch.device) -> dict[str, Any]:
    """What is needed to compare figures of two machines. No names of hosts or users."""
    machine: dict[str, Any] = {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": _memory_gib(),
        "gpu": None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fedfew": __version__,
        "system": f"{platform.system()} {platform.machine()}",
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        machine |= {
            "gpu": properties.name,
            "gpu_memory_gib": round(properties.total_memory / 2**30, 1),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
    return machine


def peak_tflops(device: torch.device, precision: str) -> tuple[float, str]:
    """Peak TFLOP/s of the device, and where the number is from: "stated" by the maker, or "measured" on a large product."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        for card, peaks in PEAKS.items():
            if card in name:
                return peaks[precision], "stated"
    return measured_tflops(device, precision), "measured"


def measured_tflops(device: torch.device, precision: str, size: int | None = None, repeats: int = 5) -> float:
    """The best of some products of two square matrices; on a CPU by each library that engines compute with, and in both ways in
    which they use its threads: one product by all threads together, which wait for each other, and one product by each, as the
    engine ``threaded`` does."""
    side = size or (8192 if device.type == "cuda" else 2048)
    random = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(side, side, device=device, generator=random).to(DTYPES[precision]) for _ in range(2))
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    try:
        seconds = []
        for product in _products(device, a.dtype):
            seconds += [_seconds(device, product, a, b) for _ in range(repeats + 1)]
            if device.type == "cpu":
                seconds += [_seconds_side_by_side(product, a, b) for _ in range(repeats + 1)]
        return 2e-12 * side**3 / min(seconds)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _products(device: torch.device, dtype: torch.dtype) -> list[Product]:
    """What multiplies two square matrices: PyTorch does so by Intel's MKL, and convolves by oneDNN, which is the faster on
    processors of other makers (``engines/onednn_products.py``). oneDNN takes the second matrix transposed."""
    onednn = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    if device.type != "cpu" or dtype != torch.float32 or onednn is None or not torch.backends.mkldnn.is_available():
        return [torch.matmul]
    return [torch.matmul, lambda a, b: onednn(a, b, None, "none", [], "")]


def _seconds(device: torch.device, product: Product, a: torch.Tensor, b: torch.Tensor) -> float:
    wait(device)
    begin = time.perf_counter()
    product(a, b)
    wait(device)
    return time.perf_counter() - begin


def _seconds_side_by_side(product: Product, a: torch.Tensor, b: torch.Tensor) -> float:
    """Seconds per product, where each thread computes one of its own."""
    threads = torch.get_num_threads()
    with torch_threads(1), ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        begin = time.perf_counter()
        list(pool.map(product, [a] * threads, [b] * threads))
        return (time.perf_counter() - begin) / threads


def wait(device: torch.device) -> None:
    """Wait until the device has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def cpu_model() -> str:
    """The processor's model name."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def peak_rss() -> int:
    """Peak resident memory of this process in bytes.

    On Linux from /proc: ``getrusage`` there starts at the size of the parent process.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _memory_gib() -> float | None:
    if not hasattr(os, "sysconf"):  # on Windows
        return None
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
