"""How many worker processes make the runs of a study, and how many threads each has."""

from __future__ import annotations

import os
from pathlib import Path

from fedfew.util.cores import cores

MPS_WORKERS = 3  # on one GPU under MPS: on an H200 more brought nothing (docs/gpu.md)


def default_workers(device: str) -> int:
    """On a CPU one worker per core, with one thread each. On a GPU one, since two would take turns; three under MPS."""
    from fedfew.util.devices import device_named

    if device_named(device).type == "cpu":
        return cores()
    return MPS_WORKERS if mps_is_on() else 1


def mps_is_on() -> bool:
    """Does NVIDIA's Multi-Process Service let processes share a GPU? ``nvidia-cuda-mps-control -d`` starts it."""
    return (Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")) / "control").exists()


def threads(workers: int) -> int:
    """Threads per worker: the workers divide the cores; never more than OMP_NUM_THREADS, where that is set."""
    share, most = max(1, cores() // workers), os.environ.get("OMP_NUM_THREADS", "")
    return min(share, int(most)) if most.isdigit() and int(most) > 0 else share
