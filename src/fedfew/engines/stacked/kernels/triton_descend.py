"""Several parameters moved by their gradients in one kernel in Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _move(block, parameter, gradient, total, inner, parts, scale, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    """Move the numbers of this block, if the parameter has as many; the block's number among those of the parameters after it.

    A gradient is [total // inner, parts, inner], to be summed over its parts.
    """
    blocks = tl.cdiv(total, BLOCK)
    if (block >= 0) & (block < blocks):
        at = block * BLOCK + tl.arange(0, BLOCK)
        inside = at < total
        first = (at // inner).to(tl.int64) * inner * parts + at % inner
        summed, none = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.int32)
        for begin in range(0, parts, PARTS):
            for part in tl.static_range(PARTS):  # not as a tile of two axes: neighbouring threads would read different parts
                place = first + (begin + part) * inner.to(tl.int64)
                summed += tl.load(gradient + place, mask=inside & (none + begin + part < parts), other=0.0)
        tl.store(parameter + at, tl.load(parameter + at, mask=inside, other=0.0) + scale * summed, mask=inside)
    return block - blocks


@triton.jit(
    do_not_specialize=[f"{name}{i}" for name in ("total", "inner", "parts") for i in range(6)]
)  # or it would be compiled anew for other numbers of clients
def descend(
    p0, g0, total0, inner0, parts0, p1, g1, total1, inner1, parts1, p2, g2, total2, inner2, parts2,
    p3, g3, total3, inner3, parts3, p4, g4, total4, inner4, parts4, p5, g5, total5, inner5, parts5,
    scale, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """p += scale · (g summed over its parts) for six parameters; a total of 0 is none. One program for BLOCK numbers."""
    block = tl.program_id(0)
    block = _move(block, p0, g0, total0, inner0, parts0, scale, BLOCK, PARTS)
    block = _move(block, p1, g1, total1, inner1, parts1, scale, BLOCK, PARTS)
    block = _move(block, p2, g2, total2, inner2, parts2, scale, BLOCK, PARTS)
    block = _move(block, p3, g3, total3, inner3, parts3, scale, BLOCK, PARTS)
    block = _move(block, p4, g4, total4, inner4, parts4, scale, BLOCK, PARTS)
    _move(block, p5, g5, total5, inner5, parts5, scale, BLOCK, PARTS)
