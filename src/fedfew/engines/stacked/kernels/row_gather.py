"""Rows of a table chosen by an index: pictures gathered for a batch, and gradients added to an embedding.

Triton on a GPU that has it, PyTorch's own operations elsewhere.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedfew.engines.stacked.kernels import usable
from fedfew.engines.stacked.kernels.compiling import start
from fedfew.engines.stacked.kernels.operation import operation


@operation("add_rows", mutates=("table",))
def add_rows(table: Tensor, at: Tensor, values: Tensor, scale: float, without: Tensor | None = None) -> None:
    """table[at] += scale · values for a table ``[…, D]`` whose leading axes count as one. A row may occur more than once.
    Where ``without`` is true nothing is added."""
    flat, at, values = table.view(-1, table.shape[-1]), at.flatten(), values.reshape(-1, table.shape[-1])
    if not usable(table.device):
        values = values if without is None else values.masked_fill(without.reshape(-1, 1), 0)
        flat.index_add_(0, at, values, alpha=scale)
        return
    from fedfew.engines.stacked.kernels import triton_row_gather

    width = table.shape[-1]
    block = min(1024, 1 << (width - 1).bit_length())
    without = None if without is None else without.contiguous()
    grid = len(at), -(-width // block)
    start(triton_row_gather.add_rows, grid, flat, at, values.contiguous(), scale, width, block, without)


@torch.library.register_fake("fedfew::add_rows")
def _(table, at, values, scale, without=None):  # type: ignore[no-untyped-def]  # nothing to say
    return None


def pictures(
    x: Tensor, at: Tensor, symmetric: bool, moves: Tensor | None = None, together: int = 1, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Images ``x[M, C, H, W]`` of bytes at the rows ``at[…]`` as a model sees them (see ``as_input``): […, C, H, W], laid out
    channels last. moves ``[…, 3]``: as :func:`fedfew.engines.augment.moved` moves them, black where a byte would be 0.
    together: in memory zeros fill the channels of a pixel up to a multiple of this. dtype: as which numbers are stored."""
    from fedfew.engines.stacked.kernels import triton_row_gather

    _, channels, height, width = x.shape
    filled = -(-channels // together) * together
    out = torch.empty(*at.shape, height, width, filled, dtype=dtype, device=x.device)
    at = at.contiguous()
    BLOCK = 1024
    started = start(
        triton_row_gather.pictures, (at.numel(), -(-height * width * filled // BLOCK)),
        x, at, at if moves is None else moves.contiguous(), out, height, width, channels, filled,
        127.5 if symmetric else 255.0, 1.0 if symmetric else 0.0, moves is not None, BLOCK,
    )  # fmt: skip
    return (out if started else out.zero_())[..., :channels].movedim(-1, -3)
