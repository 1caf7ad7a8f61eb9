"""Parameters moved by gradients of which only parts are there yet, to be summed: several in one kernel.

Triton on a GPU that has it, PyTorch's own operations elsewhere.
"""

from __future__ import annotations

from torch import Tensor

from fedfew.engines.stacked.kernels import usable
from fedfew.engines.stacked.kernels.compiling import start
from fedfew.engines.stacked.kernels.operation import operation

TOGETHER = 6  # parameters that the kernel takes
BLOCK, PARTS = 256, 16  # numbers that a program moves, parts that it adds up at once


@operation("descend", mutates=("parameters",))
def descend(parameters: list[Tensor], gradients: list[Tensor], parts: list[int], inner: list[int], scale: float) -> None:
    """parameter += scale · gradient, as both lie in memory, without gaps.

    There a gradient is ``[…, parts, inner]``, to be summed over its parts. What is long to sum comes first.
    """
    order = sorted(range(len(parameters)), key=lambda i: -parts[i])
    each = [(parameters[i], gradients[i], parameters[i].numel(), inner[i], parts[i]) for i in order]
    if not usable(parameters[0].device):
        for parameter, gradient, _, width, count in each:
            _flat(parameter).view(-1, width).add_(_flat(gradient).view(-1, count, width).sum(1), alpha=scale)
        return
    from fedfew.engines.stacked.kernels import triton_descend

    for first in range(0, len(each), TOGETHER):
        some = each[first : first + TOGETHER]
        blocks = sum(-(-total // BLOCK) for _, _, total, _, _ in some)
        none = (*some[0][:2], 0, 1, 1)
        arguments = [value for one in [*some, *[none] * (TOGETHER - len(some))] for value in one]
        start(triton_descend.descend, (blocks,), *arguments, scale, BLOCK, PARTS)


def _flat(t: Tensor) -> Tensor:
    """The numbers of a tensor without gaps in the order in which they lie in memory."""
    return t.as_strided((t.numel(),), (1,))
