"""The speed of training where no similar run has been made: a few steps, timed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from fedfew.util.cores import torch_threads

if TYPE_CHECKING:
    from torch import Tensor, nn

TIMED_FLOP = 4e10  # of a timed step at the most: about a second on a core
STACKED_FLOP = 5e7  # of a step; below it models are so small that the stack, not the arithmetic, decides
DIGITS, WORDS = ((1, 8, 8), 10, 1797), 200
Kind = tuple[str, str, int, str]  # what has the same speed: data set, model, batch size, device


@cache
def timed(kind: Kind, threads: int) -> float | None:
    """Seconds per sample pass in a few steps; None for unknown data."""
    from fedfew import models
    from fedfew.util.devices import device_named

    shaped = _shape(kind[0])
    if shaped is None or ":" in kind[1]:
        return None
    shape, classes = shaped
    device = device_named(kind[3])
    with torch_threads(threads):
        trained = models.for_tokens(kind[1]) if len(shape) == 1 else kind[1]
        module = models.build(str(trained), shape, classes).to(device)
        flop = 3 * _forward_flop(module, _inputs(shape, 2).to(device))
        if device.type == "cuda" or flop * kind[2] < STACKED_FLOP:
            return _stacked(module, shape, classes, kind[2], device)
        return _plain(module, shape, classes, max(2, min(kind[2], int(TIMED_FLOP / flop))))


def _shape(dataset: str) -> tuple[tuple[int, ...], int] | None:
    from fedfew.data.sources import SOURCES

    if dataset == "digits":
        return DIGITS[0], DIGITS[1]
    source = SOURCES.get(dataset)
    if source is None:
        return None
    return (source.size or (WORDS,)), source.classes


def _inputs(shape: Sequence[int], rows: int) -> Tensor:
    import torch

    return torch.ones(rows, *shape, dtype=torch.int64) if len(shape) == 1 else torch.randn(rows, *shape)


def _forward_flop(module: nn.Module, x: Tensor) -> float:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(x)
    return counter.get_total_flops() / len(x)


def _plain(module: nn.Module, shape: Sequence[int], classes: int, rows: int) -> float:
    """One step of SGD after another, as the sequential engine takes them."""
    import torch
    import torch.nn.functional as F

    x, y = _inputs(shape, rows), torch.arange(rows) % classes
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        module.zero_grad()
        F.cross_entropy(module(x), y).backward()
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=0.0)
        seconds.append(time.perf_counter() - begin)
    return min(seconds) / rows


def _stacked(module: nn.Module, shape: Sequence[int], classes: int, batch: int, device: Any) -> float:
    """Steps of twenty clients at once, as the stacked engine takes them."""
    import torch

    from fedfew.config import LocalTraining
    from fedfew.engines.stacked.engine import Stacked
    from fedfew.federation import Samples
    from fedfew.local import LocalEpochs
    from fedfew.models.state import replica_state
    from fedfew.stack import tree_map

    clients, each = 20, 4 * batch
    parts = [(_inputs(shape, each), torch.arange(each) % classes) for _ in range(clients)]
    samples = Samples.concatenate(parts).to(device)
    engine = Stacked(module, LocalTraining(1e-30, batch), seed=0)  # too small a step to move a weight
    params = tree_map(lambda t: t.expand(clients, 1, *t.shape), dict(replica_state(module)))
    seconds = []
    for round in range(4):
        begin = time.perf_counter()
        trained, _ = engine.train(LocalEpochs(params, samples, torch.arange(clients), round))
        float(next(iter(trained.values())).flatten()[0])  # type: ignore[union-attr]  # a flat tree; waits for the device
        seconds.append(time.perf_counter() - begin)
    return min(seconds) / (clients * each)
