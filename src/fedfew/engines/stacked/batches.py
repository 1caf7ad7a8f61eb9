"""The batches of a stack of clients sorted by size: those that have finished their epoch are at its end, and leave it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedfew.engines.augment import black, moved
from fedfew.engines.stacked import kernels
from fedfew.engines.stacked.kernels.row_gather import pictures
from fedfew.federation import Samples

AT_ONCE = 2**22  # numbers of an epoch's samples that are gathered in one go rather than batch by batch


@dataclass(frozen=True)
class Batch:
    """A step for the first ``clients`` of the sorted stack: tensors are ``[clients, K, B, …]``."""

    clients: int
    x: Tensor
    y: Tensor
    weight: Tensor  # 1/b for each of a replica's b samples, 0 for what fills the batch up
    share: Tensor  # [clients]: b / n_i


def by_size(samples: Samples) -> tuple[Tensor, list[int]]:
    """Positions of the clients, largest first, and their sizes in that order."""
    rank = samples.count.argsort(descending=True, stable=True)
    return rank, samples.count[rank].tolist()


def unranked(ranked: Tensor, rank: Tensor) -> Tensor:
    return ranked.index_select(0, rank.argsort())


def in_order(samples: Samples, models: int) -> Tensor:
    order = torch.arange(samples.longest, device=samples.count.device)
    return order.expand(len(samples.count), models, -1)


def inputs(samples: Samples, at: Tensor, shifts: Tensor | None = None) -> Tensor:
    """What a model sees of the rows ``at[…]``, images moved by ``shifts[…, 3]``; by a kernel of our own where there is one."""
    if samples.x.is_cuda and samples.x.dtype == torch.uint8 and samples.x.ndim == 4 and kernels.usable(samples.x.device):
        return pictures(samples.x, samples.rows_of_x(at), samples.pixels == "symmetric", shifts)
    seen = samples.inputs(at)
    return seen if shifts is None else moved(seen, shifts, black(samples))


def batches_of(
    samples: Samples, rank: Tensor, sizes: list[int], order: Tensor, batch_size: int, join_last: bool = False
) -> Iterator[Batch]:
    """Steps of one pass; ``order[C, K, longest]``, like the sizes, is sorted by rank.

    join_last: a client's last sample joins the batch before where it would be a batch by itself.
    """
    alone = [join_last and size > batch_size and size % batch_size == 1 for size in sizes]
    count = samples.count[rank][:, None]
    position = torch.arange(samples.longest, device=rank.device)
    valid = position < count  # [C, longest]
    rows = samples.start[rank][:, None, None] + order.where(valid[:, None], 0)
    batch = position // batch_size
    b = (count - batch * batch_size).clamp_max(batch_size)
    if any(alone):
        joined = torch.tensor(alone, device=rank.device)[:, None]
        batch = torch.where(joined & (position == count - 1), batch - 1, batch)
        b = torch.where(joined & (batch == count // batch_size - 1), batch_size + 1, b)
    weight = (valid / b)[:, None].expand(order.shape)
    share = b[:, ::batch_size] / count
    few = rows.numel() * samples.x.shape[1:].numel() <= AT_ONCE and samples.x.device == rows.device
    every = (inputs(samples, rows), samples.y[rows]) if few else None
    for step, begin in enumerate(range(0, samples.longest, batch_size)):
        active = sum(size > begin + joins for size, joins in zip(sizes, alone, strict=True))
        if active == 0:
            return
        window = slice(begin, begin + batch_size + any(alone[:active]))
        at = rows[:active, :, window]
        weighs = weight[:active, :, window]
        if any(alone):
            weighs = weighs.where((batch[:active, window] == step)[:, None], 0.0)
        x, y = (t[:active, :, window].contiguous() for t in every) if every else (inputs(samples, at), samples.y[at])
        yield Batch(
            clients=active,
            x=x,
            y=y,
            weight=weighs,
            share=share[:active, step],
        )
