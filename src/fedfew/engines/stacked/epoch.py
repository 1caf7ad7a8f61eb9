"""The steps of a whole epoch as one recording, where a stack is small and its steps are many.

A recorded step leaves its batch, its shapes and the mean loss to Python: for small models that takes as long as the arithmetic.
Here all of it is recorded, for clients that train together a second time. What is random in an epoch but the order of samples
(dropout, augmentation, mixup), momentum and projections need more than the order: their epochs go step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace

import torch
from torch import Tensor

from fedfew.engines.base import Pass
from fedfew.engines.stacked.batches import AT_ONCE, Steps
from fedfew.engines.stacked.side_by_side import SideBySide
from fedfew.engines.stacked.traced import Traced
from fedfew.federation import Samples
from fedfew.stack import Tree, from_named, leaves, named_leaves, tree_map

MOST_STEPS = 64  # in one recording

Epoch = Callable[[Steps, Samples, Tensor, Pass, float | Tensor, Tree, Tree], Tensor]
"""epoch(steps, samples, rank, pass, lr, weights, context) → mean losses; moves the weights in place."""


class RecordedEpochs:
    """Epochs found again by the shapes of their steps, the samples, and all shapes."""

    def __init__(self, side_by_side: SideBySide) -> None:
        self._side_by_side = side_by_side
        self._recordings = Traced()
        self._seen: set[Hashable] = set()

    @staticmethod
    def fit(samples: Samples, one_pass: Pass, batch_size: int) -> bool:
        """Is this epoch a function of nothing but the order of its samples, and small?"""
        others = (one_pass.dropout, one_pass.augment, one_pass.mixup, one_pass.importance)
        few = one_pass.order.numel() * samples.x.shape[1:].numel() <= AT_ONCE and samples.longest <= MOST_STEPS * batch_size
        return few and samples.x.device.type == "cpu" and all(t is None for t in others)

    def run(
        self,
        objective: Hashable,
        epoch: Epoch,
        steps_of: Callable[[tuple[int, ...]], Steps],
        sizes: list[int],
        samples: Samples,
        rank: Tensor,
        one_pass: Pass,
        lr: float | Tensor,
        weights: Tree,
        context: Tree,
    ) -> Tensor:
        """Move the weights in place by ``epoch(…)``, parts of the stack side by side; the mean losses."""
        clients, models = one_pass.order.shape[:2]
        each = sum(t.numel() for t in leaves(weights)) // clients
        calls = []
        for part in self._side_by_side.parts(sizes, sum(sizes) * each):
            steps = steps_of(tuple(sizes[part]))
            longest = steps.shape[2]
            order = replace(one_pass, order=one_pass.order[part, :, :longest])
            replicas = slice(part.start * models, part.stop * models)
            of_part = [tree_map(lambda t, at=replicas: t[at], tree) for tree in (weights, context)]
            calls.append(
                self._prepared(objective, epoch, steps, replace(samples, longest=longest), rank[part], order, lr, *of_part)
            )
        losses = self._side_by_side(calls)
        return losses[0] if len(losses) == 1 else torch.cat(losses)

    def _prepared(
        self,
        objective: Hashable,
        epoch: Epoch,
        steps: Steps,
        samples: Samples,
        rank: Tensor,
        one_pass: Pass,
        lr: float | Tensor,
        weights: Tree,
        context: Tree,
    ) -> Callable[[], Tensor]:
        names, fixed_names = (tuple(path for path, _ in named_leaves(tree)) for tree in (weights, context))
        data = (samples.x.data_ptr(), samples.y.data_ptr())  # constants of the recording, which keeps them in memory
        scheduled = isinstance(lr, Tensor)
        name = (objective, steps.windows, steps.batch_size, data, names, fixed_names, None if scheduled else lr)
        of_steps = (steps.weight, steps.share, steps.places)
        tensors = (*of_steps, samples.start, samples.count, rank, one_pass.order, *leaves(weights), *leaves(context))
        tensors = (*tensors, lr) if isinstance(lr, Tensor) else tensors

        def work(weight: Tensor, share: Tensor, places: Tensor, *given: Tensor) -> Tensor:
            start, count, rank, order, *rest = given
            own = from_named(dict(zip(names, rest, strict=False)))
            fixed = from_named(dict(zip(fixed_names, rest[len(names) :], strict=False)))
            alike = replace(steps, weight=weight, share=share, given_places=places)
            same = replace(samples, start=start, count=count)
            return epoch(alike, same, rank, replace(one_pass, order=order), rest[-1] if scheduled else lr, own, fixed)

        if name in self._seen:
            return self._recordings.prepared(name, work, *tensors)
        self._seen.add(name)
        mean_loss = work(*tensors)  # in which single steps are recorded
        return lambda: mean_loss
