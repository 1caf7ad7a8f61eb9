"""Biases of linear layers added by the operation that reads their result, in a recording for a GPU.

A product that begins with a bias takes two kernels there: the bias is first copied for every sample. Before ReLU or the loss,
whose kernels add it on the way, the product alone is enough.
"""

from __future__ import annotations

from typing import Any

import torch

from fedfew.engines.stacked.graph import Graph, Node
from fedfew.engines.stacked.kernels import bias_relu, cross_entropy

aten, own = torch.ops.aten, torch.ops.fedfew
VIEWS = {aten.view.default, aten._unsafe_view.default, aten.unsqueeze.default}


def add_biases_later(graph: Graph) -> None:
    """Let ReLU and the loss add the biases of the products that they alone read."""
    for node in graph.nodes:
        if node.target is aten.relu.default:
            bias = _taken_from_product(node)
            if bias is not None:
                node.target, node.args = own.bias_relu.default, (node.args[0], bias)
        elif node.target is own.cross_entropy.default:
            bias = _taken_from_product(node)
            if bias is not None:
                node.args = (*node.args, bias)


def _taken_from_product(reader: Node) -> Node | None:
    """The bias of the product that is the reader's first argument, which the product then no longer adds."""
    value: Any = reader.args[0]
    shape, user = value.meta["like"], reader
    while value.target in VIEWS and set(value.users) == {user}:
        user, value = value, value.args[0]
    if value.target is not aten.baddbmm.default or value.kwargs or set(value.users) != {user} or value.meta["like"] != shape:
        return None
    bias, *factors = value.args
    replicas, _, width = value.meta["like"][0]
    if bias.meta["like"] != (torch.Size((replicas, 1, width)), torch.float32):
        return None
    value.target, value.args = aten.bmm.default, tuple(factors)
    return bias


assert {bias_relu, cross_entropy}  # they register fedfew::bias_relu and fedfew::cross_entropy
