"""Operations of a recording that run beside those after them, on a second stream of the GPU.

The gradient of a convolution's weights is not needed before the end of a step. While it is computed the way back goes on: what
one kernel leaves idle when its last programs end, or when few clients are left in their epoch, the other takes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from fedfew.engines.stacked.graph import Graph, Node, is_view, nodes_in, origin
from fedfew.engines.stacked.kernels.operation import BESIDE


class Beside:
    """A second stream. One operation at a time runs on it; whoever uses its result waits for it."""

    def takes(self, graph: Graph, node: Node) -> bool:
        """Is it such an operation, and is nothing that it reads written before its result is used?"""
        if node.target not in BESIDE:
            return False
        read = set(map(origin, nodes_in((node.args, node.kwargs))))
        for later in graph.nodes[graph.nodes.index(node) + 1 :]:
            used = set(map(origin, nodes_in((later.args, later.kwargs))))
            if node in used and not is_view(later):
                return True
            if isinstance(later.target, torch._ops.OpOverload) and later.target._schema.is_mutable and read & used:
                return False
        return False

    def running(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        """The operation, started after all that the current stream has to do so far, which does not wait for it."""

        def started(*args: Any, **kwargs: Any) -> Any:
            stream = _second(torch.cuda.current_device())
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                return operation(*args, **kwargs)

        return started

    def join(self) -> None:
        """Have the current stream wait for the operation."""
        torch.cuda.current_stream().wait_stream(_second(torch.cuda.current_device()))


@cache
def _second(device: int) -> torch.cuda.Stream:
    """The same for all recordings: memory that is freed on a stream is there for that stream alone."""
    return torch.cuda.Stream(device)
