"""Plain SGD as part of a recorded step: gradients that need not be written out go straight into the parameters.

The gradient of a linear layer is a batched product; added to the weights in one operation it costs two passes over them less. Of
an embedding's table a batch touches few rows; only those are moved, where autograd would make a gradient of the whole table for
every replica. What is not recognised is added as it is.
"""

from __future__ import annotations

from typing import Any, cast

import torch

from fedfew.engines.stacked.graph import Graph, Node
from fedfew.engines.stacked.kernels import row_gather
from fedfew.engines.stacked.traced import Recording, drop_unused

aten = torch.ops.aten


def descending(recording: Recording, parameters: list[int], lr: float) -> Recording:
    """From a recording that returns (gradients, reported): one that moves the parameters, its arguments at these positions, by
    −lr times their gradients, and returns what was reported."""
    graph = recording.graph
    arguments = [node for node in graph.nodes if node.op == "placeholder"]
    output = graph.output_node()
    gradients, reported = cast(tuple[list[Any], Any], output.args[0])  # as the function returns them
    moves = [(arguments[at], g) for at, g in zip(parameters, gradients, strict=True) if isinstance(g, Node)]
    output.args = (reported,)
    left = [(parameter, g) for parameter, g in moves if not _fused(graph, parameter, g, lr)]
    if left:
        graph.call_function(aten._foreach_add_.List, tuple([list(nodes) for nodes in zip(*left, strict=True)]), {"alpha": -lr})
    drop_unused(graph)
    return recording


def _fused(graph: Graph, parameter: Node, gradient: Node, lr: float) -> bool:
    """Move the parameter without its gradient, if the gradient is of a kind that allows it and nothing else uses it."""
    if gradient.target is aten.mm.default and not gradient.users:
        graph.call_function(aten.addmm_.default, (parameter, *gradient.args), {"alpha": -lr})
        return True
    turned = gradient.target is aten.transpose.int and gradient.args[1:] == (1, 2)
    source: Any = gradient.args[0] if turned or gradient.target is aten.view.default else gradient
    if gradient.users or (source is not gradient and set(source.users) != {gradient}):
        return False
    if source.target is aten.bmm.default and (turned or source is gradient):
        a, b = source.args
        if turned:  # (a·b)ᵀ = bᵀ·aᵀ
            a, b = (graph.call_function(aten.transpose.int, (factor, 1, 2)) for factor in (b, a))
        graph.call_function(aten.baddbmm_.default, (parameter, a, b), {"alpha": -lr})
        return True
    if source.target is aten.embedding_dense_backward.default and source.args[3:] == (-1, False) and not turned:
        g, at = source.args[:2]
        graph.call_function(torch.ops.fedfew.add_rows.default, (parameter, at, g, -lr))
        return True
    return False


assert row_gather is not None  # it registers fedfew::add_rows
