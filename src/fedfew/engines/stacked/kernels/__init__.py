"""What makes the stacked engine fast on a GPU: kernels in Triton, each with a twin in plain PyTorch.

Nothing here is needed to train: without Triton, or on the CPU, the stack runs on PyTorch's own operations.
"""

from __future__ import annotations

import functools
import importlib.util

import torch


@functools.cache
def usable(device: torch.device) -> bool:
    """Are there kernels for this device: a GPU that Triton supports, and Triton?"""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)
