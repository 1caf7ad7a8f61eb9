"""Plain SGD as part of a recorded step: gradients that need not be written out go straight into the parameters.

The gradient of a linear layer is a batched product; added to the weights in one operation it costs two passes over them less. Of
an embedding's table a batch touches few rows; only those are moved, where autograd would make a gradient of the whole table for
every replica. On a GPU gradients that are sums (of biases; of filters, which are computed in parts) are summed where they are
added, those of several parameters in one kernel. What is not recognised is added as it is.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch

from fedfew.engines.stacked.graph import Graph, Node, nodes_in, origin
from fedfew.engines.stacked.kernels import descend, row_gather
from fedfew.engines.stacked.linear_descent import moved_on_the_way_back
from fedfew.engines.stacked.traced import Recording, drop_unused

aten = torch.ops.aten


VIEWS = {*(aten.view.default, aten._unsafe_view.default, aten.permute.default, aten.unsqueeze.default), aten.squeeze.dim}
MOST_PARTS = 256  # of a sum that one program takes


def descending(recording: Recording, parameters: list[int], lr: float, kernels: bool = False) -> Recording:
    """From a recording that returns (gradients, reported): one that moves the parameters, its arguments at these positions, by
    −lr times their gradients, and returns what was reported. kernels: there are some for its device."""
    graph = recording.graph
    arguments = [node for node in graph.nodes if node.op == "placeholder"]
    output = graph.output_node()
    gradients, reported = cast(tuple[list[Any], Any], output.args[0])  # as the function returns them
    moves = [(arguments[at], g) for at, g in zip(parameters, gradients, strict=True) if isinstance(g, Node)]
    output.args = (reported,)
    moved = {parameter for parameter, _ in moves}
    for at, (parameter, g) in enumerate(moves):
        if origin(g) in moved:  # the gradient of p in p·q is q, which moves too
            moves[at] = parameter, _copied(graph, g)
    left = [(parameter, g) for parameter, g in moves if not _fused(graph, parameter, g, lr, moved, kernels)]
    if kernels and (sums := {parameter: found for parameter, g in left if (found := _summed(parameter, g, moved)) is not None}):
        nodes, parts, inner = (list(of) for of in zip(*sums.values(), strict=True))
        graph.call_function(torch.ops.fedfew.descend.default, (list(sums), nodes, parts, inner, -lr))
        left = [(parameter, g) for parameter, g in left if parameter not in sums]
    if left:
        graph.call_function(aten._foreach_add_.List, tuple([list(nodes) for nodes in zip(*left, strict=True)]), {"alpha": -lr})
    drop_unused(graph)
    return recording


def _copied(graph: Graph, node: Node) -> Node:
    copy = graph.call_function(aten.clone.default, (node,), {"memory_format": torch.preserve_format})
    copy.meta = dict(node.meta)
    return copy


def _fused(graph: Graph, parameter: Node, gradient: Node, lr: float, moved: set[Node], kernels: bool) -> bool:
    """Move the parameter without its gradient, if the gradient is of a kind that allows it and nothing else uses it. A product
    with a parameter that is moved, as where a layer's weights are a product of two, must be taken before any is."""
    product = gradient.args[0] if gradient.target is aten.transpose.int else gradient
    if any(origin(factor) in moved for factor in nodes_in(product.args)):
        return False
    if gradient.target is aten.mm.default and not gradient.users:
        graph.call_function(aten.addmm_.default, (parameter, *gradient.args), {"alpha": -lr})
        return True
    turned = gradient.target is aten.transpose.int and gradient.args[1:] == (1, 2)
    source: Any = gradient.args[0] if turned or gradient.target is aten.view.default else gradient
    if gradient.users or (source is not gradient and set(source.users) != {gradient}):
        return False
    if source.target is aten.bmm.default and (turned or source is gradient):
        a, b = source.args
        if kernels and not turned and moved_on_the_way_back(graph, parameter, a, b, lr):
            return True
        if turned:  # (a·b)ᵀ = bᵀ·aᵀ
            a, b = (graph.call_function(aten.transpose.int, (factor, 1, 2)) for factor in (b, a))
        graph.call_function(aten.baddbmm_.default, (parameter, a, b), {"alpha": -lr})
        return True
    if source.target is aten.embedding_dense_backward.default and not source.args[4] and not turned:
        g, at, _, padding, _ = source.args
        if kernels and padding < 0 and (cut := _cut_off(g, at)) is not None:
            graph.call_function(torch.ops.fedfew.add_rows.default, (parameter, at, cut[1], -lr, cut[0]))
            return True
        rows = g if padding < 0 else _without_padding(graph, g, at, padding)
        graph.call_function(torch.ops.fedfew.add_rows.default, (parameter, at, rows, -lr))
        return True
    return False


def _without_padding(graph: Graph, g: Node, at: Node, padding: int) -> Node:
    """The gradient ``[…, D]`` of the rows chosen, 0 for those of padding."""
    is_padding = graph.call_function(aten.unsqueeze.default, (graph.call_function(aten.eq.Scalar, (at, padding)), -1))
    return graph.call_function(aten.where.ScalarSelf, (is_padding, 0.0, g))


def _cut_off(g: Node, at: Node) -> tuple[Node, Node] | None:
    """Where a gradient is cut off, as that of padding is, one truth for each row, and what it was before: the kernel passes these
    rows over, and no copy of the gradient is needed."""
    if g.target is not aten.where.self:
        return None
    where, zero, before = g.args
    of_rows = where.meta["like"] == (torch.Size((*at.meta["like"][0], 1)), torch.bool)
    is_zero = isinstance(zero, Node) and zero.target is aten.scalar_tensor.default and zero.args[0] == 0
    return (where, before) if of_rows and is_zero and before.meta["like"] == g.meta["like"] else None


def _summed(parameter: Node, gradient: Node, moved: set[Node]) -> tuple[Node, int, int] | None:
    """What the gradient is the sum of: a node, in how many parts it lies in memory, and how long each is. One part: the gradient
    itself. None where it lies otherwise than the parameter. Parts of a parameter that is moved are summed before."""
    layout, (size, dtype) = _layout(gradient), gradient.meta["like"]
    lies_alike = gradient.meta["like"] == parameter.meta["like"] and layout == _layout(parameter)
    if not lies_alike or not _is_dense(sorted(layout, reverse=True)) or dtype != torch.float32 or size.numel() >= 2**31:
        return None
    total: Any = gradient
    while total.target in VIEWS and set(total.args[0].users) == {total}:
        total = total.args[0]
    in_float32 = total.kwargs.get("dtype") in (None, torch.float32)  # autocast asks for it
    if total.target is aten.sum.dim_IntList and len(total.args[1]) == 1 and in_float32:
        parts, (axis,) = total.args[:2]
        length, dtype = parts.meta["like"]
        in_order = _is_dense(_layout(parts)) and _is_dense(_layout(total))
        if in_order and dtype == torch.float32 and length[axis] <= MOST_PARTS and origin(parts) not in moved:
            return parts, length[axis], length[axis % len(length) + 1 :].numel()
    return gradient, 1, size.numel()


def _layout(node: Node) -> list[tuple[int, int]]:
    """The stride and the length of each axis that has any."""
    (size, _), strides = node.meta["like"], node.meta["stride"]
    return [(stride, length) for stride, length in zip(strides, size, strict=True) if length > 1]


def _is_dense(layout: list[tuple[int, int]]) -> bool:
    """Is every axis as far apart as what comes after it is long?"""
    strides = [stride for stride, _ in layout]
    return strides == [math.prod(length for _, length in layout[at + 1 :]) for at in range(len(layout))]


assert {descend, row_gather}  # they register fedfew::descend and fedfew::add_rows
