"""The buffers that captured steps work on: what they read in turn, and what they leave.

Where there are kernels a step reads all of it in one, and counts itself in another.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from torch import Tensor

from fedfew.engines.base import Pass
from fedfew.engines.stacked import optimizer
from fedfew.engines.stacked.kernels import batch, usable
from fedfew.federation import Samples
from fedfew.local import Objective
from fedfew.stack import Tree

Work = Callable[[], None]


@dataclass(frozen=True)
class Read:
    """What a step takes from the buffers for its R replicas, B samples each."""

    at: Tensor  # [R, B]: the rows of x
    y: Tensor  # [R, B, …]
    weight: Tensor  # [R, B]
    share: Tensor  # [R]
    moves: Tensor | None  # [R, B, 3]
    importance: Tensor | None  # [R, B]


@dataclass
class Space:
    """Buffers for a stack of at most so many clients and steps, and the graphs that work on them."""

    clients: int
    steps: int
    samples: Samples
    weights: Tree  # [clients·K, …], largest client first
    context: Tree
    state: optimizer.State
    lr: Tensor
    rows: Tensor  # [clients, K, steps·B]
    weight: Tensor  # [clients, steps·B]
    share: Tensor  # [clients, steps]
    dropout: Tensor  # [clients, K]
    moves: Tensor  # [clients, K, steps·B, 3]: of augmented images
    mixup: Tensor  # [clients, K, steps]
    importance: Tensor  # [clients, K, steps·B]
    step: Tensor  # [1]: the number of the step to come
    within: Tensor  # 0 … B − 1; a graph keeps nothing alive that it reads, so even this lies here
    begun: Pass | None = None  # the epoch whose numbers the buffers hold already
    mean_loss: dict[Objective, Tensor] = field(default_factory=dict)
    seen: set[Hashable] = field(default_factory=set)
    graphs: OrderedDict[Hashable, Work] = field(default_factory=OrderedDict)

    def fits(self, clients: int, steps: int) -> bool:
        return clients <= self.clients and steps <= self.steps

    def read(self, clients: int, moved: bool, weighted: bool) -> Read:
        """For the step to come of the first clients. moved: their images; weighted: by importance."""
        moves, importance = self.moves if moved else None, self.importance if weighted else None
        labels, row = self.samples.y, self.samples.row
        if usable(self.step.device) and labels.ndim == 1:
            found = batch.read(self.step, self.rows, self.weight, self.share, labels, row, moves, importance, clients)
            return Read(*found)
        window, models = self.step * len(self.within) + self.within, self.rows.shape[1]
        at = self.rows[:clients].index_select(2, window).flatten(0, 1)
        weight, share = self.weight[:clients].index_select(1, window), self.share[:clients].index_select(1, self.step)
        return Read(
            self.samples.rows_of_x(at),
            labels[at],
            weight[:, None].expand(-1, models, -1).flatten(0, 1),
            share.expand(-1, models).flatten(),
            None if moves is None else moves[:clients].index_select(2, window).flatten(0, 1),
            None if importance is None else importance[:clients].index_select(2, window).flatten(0, 1),
        )

    def report(self, objective: Objective, reported: Tensor, share: Tensor) -> None:
        """Add what the step's replicas reported, ``[R, …]``, to the mean losses, and count the step."""
        models = self.rows.shape[1]
        if objective not in self.mean_loss:  # in the first step of all, which is not captured
            self.mean_loss[objective] = reported.new_zeros(self.clients, models, *reported.shape[1:])
        mean_loss = self.mean_loss[objective]
        if usable(self.step.device):
            batch.add_losses(mean_loss, reported, share, self.step)
            return
        mean_loss.flatten(0, 1)[: len(reported)] += reported * share.reshape(-1, *[1] * (reported.ndim - 1))
        self.step += 1
