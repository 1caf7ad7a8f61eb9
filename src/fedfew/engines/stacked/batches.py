"""The batches of a stack of clients sorted by size: those that have finished their epoch are at its end, and leave it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from fedfew.engines.augment import black, moved
from fedfew.engines.stacked import kernels
from fedfew.engines.stacked.kernels.row_gather import pictures
from fedfew.federation import Samples
from fedfew.stack import Tree, leaves

PLAIN = (1, torch.float32)  # layout of images
AT_ONCE = 2**22  # numbers of an epoch's samples that are gathered in one go rather than batch by batch


@dataclass(frozen=True)
class Batch:
    """A step for the first ``clients`` of the sorted stack: tensors are ``[clients, K, B, …]``."""

    clients: int
    x: Tensor
    y: Tensor
    weight: Tensor  # 1/b for each of a replica's b samples, 0 for what fills the batch up
    share: Tensor  # [clients]: b / n_i


def unranked(ranked: Tensor, rank: Tensor) -> Tensor:
    return ranked.index_select(0, rank.argsort())


def filler(order: Tensor, count: Tensor, batch_size: int) -> Tensor:
    """The sample ``[C, K, 1]`` that fills up the last batch of each client of ``count[C]``: one that is in it. Another's loss
    may be infinite, and that times a weight of 0 is not a number."""
    last = (count - 1).clamp_min(0) // batch_size * batch_size
    return order.gather(2, last[:, None, None].expand(-1, order.shape[1], 1))


def precision(params: Tree) -> torch.dtype:
    """Of what multiplies these models' losses."""
    return torch.float64 if any(t.dtype == torch.float64 for t in leaves(params)) else torch.float32


def in_order(samples: Samples, models: int) -> Tensor:
    order = torch.arange(samples.longest, device=samples.count.device)
    return order.expand(len(samples.count), models, -1)


def inputs(samples: Samples, at: Tensor, shifts: Tensor | None = None, layout: tuple[int, torch.dtype] = PLAIN) -> Tensor:
    """What a model sees of the rows ``at[…]``, images moved by ``shifts[…, 3]``; by a kernel of our own where there is one, which
    writes them in a layout that suits the first layer (see :func:`fused.image_layout`)."""
    if samples.x.is_cuda and samples.x.dtype == torch.uint8 and samples.x.ndim == 4 and kernels.usable(samples.x.device):
        return pictures(samples.x, samples.rows_of_x(at), samples.pixels == "symmetric", shifts, *layout)
    seen = samples.inputs(at)
    return seen if shifts is None else moved(seen, shifts, black(samples))


@dataclass(frozen=True)
class Steps:
    """The steps of one pass of clients of given sizes, whatever their samples are: the same in every round."""

    windows: tuple[tuple[int, int, int], ...]  # of each step: how many clients, and from where to where in their orders
    shape: tuple[int, int, int]  # of the orders, [C, K, longest]
    weight: Tensor  # of all batches, one after the other, as in a batch
    share: Tensor
    batch_size: int
    given_places: Tensor | None = None

    @classmethod
    @lru_cache(maxsize=32)
    def of(
        cls, sizes: tuple[int, ...], models: int, batch_size: int, join_last: bool, dtype: torch.dtype, device: torch.device
    ) -> Steps:
        alone = [join_last and size > batch_size and size % batch_size == 1 for size in sizes]
        windows, weights, shares = [], [], []
        for begin in range(0, sizes[0], batch_size):
            active = sum(size > begin + joins for size, joins in zip(sizes, alone, strict=True))
            if active == 0:
                break
            joined = [joins and size == begin + batch_size + 1 for size, joins in zip(sizes[:active], alone, strict=False)]
            ends = [min(size, begin + batch_size + more) for size, more in zip(sizes, joined, strict=False)]
            windows.append((active, begin, min(sizes[0], begin + batch_size + any(alone[:active]))))
            end = torch.tensor(ends, device=device)[:, None]
            weight = (torch.arange(begin, windows[-1][2], device=device) < end).to(dtype) / (end - begin)
            weights.append(weight[:, None].expand(-1, models, -1).flatten())
            shares.append((end[:, 0] - begin).to(dtype) / torch.tensor(sizes[:active], device=device))
        return cls(tuple(windows), (len(sizes), models, sizes[0]), torch.cat(weights), torch.cat(shares), batch_size)

    @cached_property
    def places(self) -> Tensor:
        """Where the samples of all batches are in the orders, one batch after the other."""
        if self.given_places is not None:
            return self.given_places
        every = torch.arange(math.prod(self.shape), device=self.share.device).reshape(self.shape)
        return torch.cat([every[:active, :, begin:end].flatten() for active, begin, end in self.windows])

    def batches(self, samples: Samples, rank: Tensor, order: Tensor) -> Iterator[Batch]:
        """``order[C, K, longest]``, like the sizes, is sorted by rank."""
        models, shape = order.shape[1], samples.x.shape[1:]
        position = torch.arange(samples.longest, device=rank.device)
        count = samples.count[rank]
        order = order.where(position < count[:, None, None], filler(order, count, self.batch_size))
        rows = samples.start[rank][:, None, None] + order
        few = rows.numel() * shape.numel() <= AT_ONCE and samples.x.device == rows.device
        lengths = [active * models * (end - begin) for active, begin, end in self.windows]
        weights, shares = self.weight.split(lengths), self.share.split([active for active, _, _ in self.windows])
        if few:
            every = rows.flatten().index_select(0, self.places)
            features, labels = (t.split(lengths) for t in (inputs(samples, every), samples.y.index_select(0, every)))
        for at, (active, begin, end) in enumerate(self.windows):
            stack = (active, models, end - begin)
            if few:
                x, y = features[at].view(*stack, *shape), labels[at].view(*stack, *samples.y.shape[1:])
            else:
                of_step = rows[:active, :, begin:end]
                x, y = inputs(samples, of_step), samples.y[of_step]
            yield Batch(clients=active, x=x, y=y, weight=weights[at].view(stack), share=shares[at])


def batches_of(
    samples: Samples,
    rank: Tensor,
    sizes: list[int],
    order: Tensor,
    batch_size: int,
    params: Tree,
    join_last: bool = False,
) -> Iterator[Batch]:
    """Steps of one pass; ``order[C, K, longest]``, like the sizes, is sorted by rank.

    params: of the models whose losses the samples weigh in.
    join_last: a client's last sample joins the batch before where it would be a batch by itself.
    """
    steps = Steps.of(tuple(sizes), order.shape[1], batch_size, join_last, precision(params), rank.device)
    return steps.batches(samples, rank, order)
