"""What a step reads from its buffers and what it leaves there, each by one kernel.

:class:`fedfew.engines.stacked.space.Space` says the same in plain PyTorch.
"""

from __future__ import annotations

from torch import Tensor

from fedfew.engines.stacked.kernels.compiling import start

BLOCK = 1024


def read(
    step: Tensor,
    rows: Tensor,
    weight: Tensor,
    share: Tensor,
    labels: Tensor,
    row: Tensor | None,
    moves: Tensor | None,
    importance: Tensor | None,
    clients: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Of the first clients in this step: where the features are ``[R, B]``, labels and weights ``[R, B]``, shares ``[R]``, moves
    ``[R, B, 3]`` and importance ``[R, B]`` where there are some."""
    from fedfew.engines.stacked.kernels import triton_batch

    models, steps = rows.shape[1], share.shape[1]
    replicas, size = clients * models, rows.shape[2] // steps
    stack = (replicas, size)
    at, y, weigh, share_now = (t.new_empty(of) for t, of in ((rows, stack), (labels, stack), (weight, stack), (share, replicas)))
    moved = None if moves is None else moves.new_empty(*stack, 3)
    important = None if importance is None else importance.new_empty(stack)
    optional = (row, moves, importance)
    started = start(
        triton_batch.read, (replicas,),
        step, rows, weight, share, labels, *(step if t is None else t for t in optional),
        at, y, weigh, share_now, *(step if t is None else t for t in (moved, important)),
        steps, models, size, *(t is not None for t in optional), BLOCK=1 << (size - 1).bit_length(),
    )  # fmt: skip
    if not started:  # or positions would be whatever lies in new memory
        for t in (at, y, weigh, share_now, *(t for t in (moved, important) if t is not None)):
            t.zero_()
    return at, y, weigh, share_now, moved, important


def add_losses(mean_loss: Tensor, reported: Tensor, share: Tensor, step: Tensor) -> None:
    """Add share ``[R]`` times the losses reported ``[R, …]`` to the first mean losses, and count the step."""
    from fedfew.engines.stacked.kernels import triton_batch

    each = reported.numel() // len(reported)
    start(triton_batch.add_losses, (1,), mean_loss, reported.contiguous(), share, step, reported.numel(), each, BLOCK)
