"""What a step reads from its buffers and what it leaves there, in Triton: one kernel each, where plain operations were ten."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["steps"])
def read(
    step, rows, weight, share, labels, row, moves, importance,
    at_out, y_out, weight_out, share_out, moves_out, importance_out,
    steps, K: tl.constexpr, B: tl.constexpr,
    ROW: tl.constexpr, MOVES: tl.constexpr, IMPORTANCE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The part of a step in rows and importance [C, K, steps·B], moves [C, K, steps·B, 3], weight [C, steps·B] and share
    [C, steps]: one program for each replica. ROW: at_out is row[…] of the rows, those of labels are the rows themselves."""
    r = tl.program_id(0).to(tl.int64)
    client = r // K
    now = tl.load(step)
    b = tl.arange(0, BLOCK)
    inside = b < B
    position = now * B + b
    of_client, of_replica, out = client * (steps * B) + position, r * (steps * B) + position, r * B + b
    at = tl.load(rows + of_replica, mask=inside, other=0)
    tl.store(y_out + out, tl.load(labels + at, mask=inside, other=0), mask=inside)
    if ROW:
        at = tl.load(row + at, mask=inside, other=0)
    tl.store(at_out + out, at, mask=inside)
    tl.store(weight_out + out, tl.load(weight + of_client, mask=inside, other=0), mask=inside)
    tl.store(share_out + r, tl.load(share + client * steps + now))
    if MOVES:
        for part in tl.static_range(3):
            move = tl.load(moves + 3 * of_replica + part, mask=inside, other=0)
            tl.store(moves_out + 3 * out + part, move, mask=inside)
    if IMPORTANCE:
        tl.store(importance_out + out, tl.load(importance + of_replica, mask=inside, other=0), mask=inside)


@triton.jit(do_not_specialize=["total"])  # or it would be compiled anew for other numbers of clients
def add_losses(mean_loss, reported, share, step, total, EACH: tl.constexpr, BLOCK: tl.constexpr):
    """mean_loss[R, EACH] += share[R] · reported[R, EACH], and one step more. One program: nobody else reads what it counts."""
    for first in range(0, total, BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < total
        more = tl.load(reported + at, mask=inside, other=0) * tl.load(share + at // EACH, mask=inside, other=0)
        tl.store(mean_loss + at, tl.load(mean_loss + at, mask=inside, other=0) + more, mask=inside)
    tl.store(step, tl.load(step) + 1)
