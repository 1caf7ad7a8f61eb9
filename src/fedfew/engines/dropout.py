"""Dropout with counted randomness, so that both engines drop the same units.

``torch.nn.Dropout`` draws from a global generator, whose state depends on what ran before. Here the mask is a hash of (the
replica's key for this step, the layer, the unit). Modules that call ``F.dropout`` themselves still work, but their draws are not
counted.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedfew import counted


class _Running(threading.local):
    """What runs in this thread."""

    key: Tensor | None = None


_running = _Running()


@contextmanager
def keyed(key: Tensor) -> Iterator[None]:
    """Within: the key of the replica and step that is running (a vmapped tensor in the stack)."""
    before, _running.key = _running.key, key
    try:
        yield
    finally:
        _running.key = before


class CountedDropout(nn.Module):
    def __init__(self, p: float, layer: int) -> None:
        super().__init__()
        self.p = p
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        key = _running.key
        if not self.training or self.p == 0 or key is None:
            return x
        unit = torch.arange(x.numel(), device=x.device).reshape(x.shape)
        keep = counted.uniform(key, self.layer, unit) >= self.p
        return x * keep / (1 - self.p) if self.p < 1 else x * 0


def make_counted(module: nn.Module) -> nn.Module:
    """A copy of the module in which every ``nn.Dropout`` is counted; names of parameters and buffers stay the same."""
    module = copy.deepcopy(module)
    for layer, (name, child) in enumerate(list(module.named_modules())):
        if type(child) is nn.Dropout:
            if not name:
                return CountedDropout(child.p, layer)
            parent, _, attribute = name.rpartition(".")
            setattr(module.get_submodule(parent), attribute, CountedDropout(child.p, layer))
    return module
