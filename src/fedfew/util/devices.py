"""The device that a setting names."""

from __future__ import annotations

import torch


def device_named(name: str) -> torch.device:
    """``cpu``, ``cuda`` or ``cuda:N``; ``auto`` is the GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device must be auto, cpu, cuda or cuda:N, not {name!r}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device is {name!r}, but this machine has no CUDA GPU that torch can use: choose cpu, or auto")
    return device
