"""Linear layers moved on the way back: the gradient of their rows and their step of SGD, in one pass over the weights.

As two products they read the weights twice, and with few rows per replica that is what both take their time for. The weights are
then moved as soon as the gradient of the rows is there, not at the end of the step: nothing may read them after that.
"""

from __future__ import annotations

import torch

from fedfew.engines.precision import in_tf32
from fedfew.engines.stacked.graph import Graph, Node, nodes_in, origin
from fedfew.engines.stacked.kernels import linear_step

aten = torch.ops.aten


def moved_on_the_way_back(graph: Graph, parameter: Node, turned: Node, rows: Node, lr: float) -> bool:
    """Move the parameter by −lr times ``turned·rows``, its gradient, where the graph multiplies with it, if it does and if the
    kernel is made for it. Did it?"""
    if turned.target is not aten.transpose.int or {axis % 3 for axis in turned.args[1:]} != {1, 2}:
        return False
    g = turned.args[0]
    product = next((user for user in parameter.users if user.target is aten.bmm.default and user.args == (g, parameter)), None)
    if product is None or not _suits(parameter, g, rows):
        return False
    at = graph.nodes.index(product)
    if rows not in graph.nodes[:at] or any(_reads(node, parameter) for node in graph.nodes[at + 1 :]):
        return False
    product.target, product.args = torch.ops.fedfew.linear_step.default, (parameter, g, rows, -lr)
    return True


def _suits(parameter: Node, g: Node, rows: Node) -> bool:
    """Is it a layer for the kernel, which multiplies in TF32?"""
    size, _ = parameter.meta["like"]
    contiguous = parameter.meta["stride"] == (size[1] * size[2], size[2], 1)
    in_float32 = all(node.meta["like"][1] == torch.float32 for node in (parameter, g, rows))
    return in_tf32() and contiguous and in_float32 and linear_step.suits(g.meta["like"][0][1], *size[1:])


def _reads(node: Node, parameter: Node) -> bool:
    return any(origin(read) is parameter for read in nodes_in((node.args, node.kwargs)))
