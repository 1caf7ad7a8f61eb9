"""How much memory a run may take."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from fedfew.engines.base import Engine
from fedfew.federation import Samples

ON_A_CPU = 2 * 2**30  # bytes; fixed, so that a run is repeated to the last bit


def allowance(device: torch.device) -> int:
    """Bytes for a chunk of clients in training: on a GPU a third of what this process may have, since what a captured step works
    with is held beside what one that is not captured needs."""
    if device.type != "cuda":
        return ON_A_CPU
    total = torch.cuda.get_device_properties(device).total_memory
    return int(total * torch.cuda.get_per_process_memory_fraction(_number(device))) // 3


def clients_that_fit(engine: Engine, samples: Samples, replicas: int) -> int:
    """How many clients can be processed at once."""
    each = replicas * engine.bytes_per_replica(samples)
    return max(1, min(len(samples.count), allowance(samples.y.device) // each))


def too_large(splits: Iterable[Samples], device: torch.device) -> bool:
    """Do the features of these splits leave too little of a GPU's memory for training?"""
    if device.type != "cuda":
        return False
    return bool(sum(s.x.numel() * s.x.element_size() for s in splits) > allowance(device))


def share(device: torch.device, processes: int) -> None:
    """Leave the others, of so many processes, their share of a GPU: what asks for more than its own fails, not another."""
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(1 / processes, _number(device))


def _number(device: torch.device) -> int:
    """Which GPU; these functions of PyTorch do not take "cuda" alone."""
    return torch.cuda.current_device() if device.index is None else device.index
