"""The order in which replicas see their samples, drawn for several rounds at once where the same clients train in each.

Between two rounds of a small stack the processor's caches are full of weights, and drawing one order takes four times as long as
drawing one right after another.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedfew import random_streams
from fedfew.federation import Samples
from fedfew.local import LocalEpochs
from fedfew.stack import leaves

AHEAD = 16  # rounds
FEW = 2**14  # numbers of one order; larger ones take their time whenever they are drawn


class Orders:
    """Orders ``[C, K, longest]`` of an engine's epochs on the CPU."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._last: dict[tuple[int, int], tuple[Tensor, Samples]] = {}  # by epoch and models: who trained in the last round
        self._drawn: dict[tuple[int, int], dict[int, Tensor]] = {}  # their orders of coming rounds

    def of(self, work: LocalEpochs, epoch: int) -> Tensor | None:
        """The order of this epoch; None: it is to be drawn alone, for other clients than in the last round or many samples."""
        models = leaves(work.params)[0].shape[1]
        if work.samples.count.is_cuda or models * len(work.clients) * work.samples.longest > FEW:
            return None
        name = epoch, models
        again = name in self._last and self._last[name][1] is work.samples and torch.equal(self._last[name][0], work.clients)
        self._last[name] = work.clients, work.samples
        if not again:
            self._drawn[name] = {}
            return None
        if work.round not in self._drawn[name]:
            self._drawn[name] = self._ahead(work, models, epoch)
        return self._drawn[name].pop(work.round)

    def _ahead(self, work: LocalEpochs, models: int, epoch: int) -> dict[int, Tensor]:
        rounds = range(work.round, work.round + AHEAD)
        keys = torch.cat([random_streams.order_keys(self.seed, round, work.clients, models, epoch) for round in rounds])
        orders = random_streams.permutations(keys, work.samples.count.repeat(AHEAD), work.samples.longest)
        return dict(zip(rounds, orders.split(len(work.clients)), strict=True))
