"""The device that a setting names."""

from __future__ import annotations

import torch

_KINDS = "device must be auto, cpu, cuda or cuda:N, not {!r}"


def device_named(name: str) -> torch.device:
    """``cpu``, ``cuda`` or ``cuda:N``; ``auto`` is the GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise ValueError(_KINDS.format(name)) from error
    if device.type not in ("cpu", "cuda"):  # torch knows others (mps, xpu, meta), on which the engines do not run
        raise ValueError(_KINDS.format(str(name)))
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device is '{name}', but this machine has no CUDA GPU that torch can use: choose cpu, or auto")
    if device.type == "cuda" and (device.index or 0) >= (found := torch.cuda.device_count()):
        raise ValueError(f"device is '{name}', but the GPUs that torch can use here are cuda:0 to cuda:{found - 1}")
    return device
