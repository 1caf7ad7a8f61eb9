"""The stacked engine that the runs of a pack share, and the samples of several runs as those of one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedfew.engines.memory import allowance
from fedfew.engines.stacked import Stacked
from fedfew.federation import Samples
from fedfew.local import Objective

KEPT = 16  # joined samples: those of the runs and splits that were put together last


class SharedStack:
    """One stacked engine for runs that train the same module in the same way."""

    def __init__(self, engine: Stacked) -> None:
        self.engine = engine
        self._joined: OrderedDict[Hashable, tuple[Sequence[Samples], Samples]] = OrderedDict()
        self._bytes: int | None = None
        self._objectives: dict[Hashable, Objective] = {}

    def same(self, objective: Objective) -> Objective:
        """The first objective that does the same as this one: those of equal methods do, though they are not equal."""
        method = getattr(objective, "__self__", None)
        try:
            return self._objectives.setdefault((getattr(objective, "__func__", objective), method), objective)
        except TypeError:  # a method that cannot be hashed is like no other
            return objective

    @staticmethod
    def data(samples: Samples) -> Hashable:
        """Samples of runs can be joined if they are rows of the same tensors."""
        terms = tuple(None if t is None else t.shape[1:] for t in (samples.log_prior, samples.class_weights))
        return id(samples.x), id(samples.y), id(samples.row), samples.pixels, terms

    def replicas_that_fit(self, samples: Samples) -> int:
        if self._bytes is None:
            self._bytes = self.engine.bytes_per_replica(samples)
        return allowance(samples.y.device) // self._bytes

    def joined(self, parts: Sequence[tuple[Samples, int]]) -> Samples:
        """The samples of all these clients, each repeated so many times. The same object for the same parts."""
        key = tuple((id(samples), repeats) for samples, repeats in parts)
        if key not in self._joined:
            self._joined[key] = [samples for samples, _ in parts], _joined(parts)
            if len(self._joined) > KEPT:
                self._joined.popitem(last=False)
        self._joined.move_to_end(key)
        return self._joined[key][1]


def _joined(parts: Sequence[tuple[Samples, int]]) -> Samples:
    def of(name: str) -> Tensor:
        return torch.cat([getattr(samples, name).repeat_interleave(repeats, 0) for samples, repeats in parts])

    first = parts[0][0]
    return replace(
        first,
        start=of("start"),
        count=of("count"),
        longest=max(samples.longest for samples, _ in parts),
        log_prior=None if first.log_prior is None else of("log_prior"),
        class_weights=None if first.class_weights is None else of("class_weights"),
        unseen=None,  # a run asks for the scores of these samples by themselves, and the engine trains on none
    )
