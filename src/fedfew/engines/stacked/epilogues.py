"""What comes before and after the products of linear layers, done by one kernel in a recording for a GPU.

A product that begins with a bias takes two kernels there: the bias is first copied for every sample. Before ReLU or the loss,
whose kernels add it on the way, the product alone is enough. With few rows a large layer and the ReLU after it are one kernel. On
the way back a layer with few outputs and the ReLU before it are one.
"""

from __future__ import annotations

from typing import Any

import torch

from fedfew.engines.precision import in_tf32
from fedfew.engines.stacked.graph import Graph, Node
from fedfew.engines.stacked.kernels import bias_relu, cross_entropy, linear_gradient, linear_relu

aten, own = torch.ops.aten, torch.ops.fedfew
VIEWS = {aten.view.default, aten._unsafe_view.default, aten.unsqueeze.default}


def fuse_epilogues(graph: Graph) -> None:
    """Let ReLU and the loss add the biases of the products that they alone read, and ReLU's gradient take such a product."""
    for node in list(graph.nodes):
        if node.target is aten.relu.default:
            bias = _taken_from_product(node)
            if bias is not None:
                node.target, node.args = own.bias_relu.default, (node.args[0], bias)
                _take_layer(graph, node)
        elif node.target is own.cross_entropy.default:
            bias = _taken_from_product(node)
            if bias is not None:
                node.args = (*node.args, bias)
        elif node.target is aten.threshold_backward.default:
            _take_product(graph, node)


def _taken_from_product(reader: Node) -> Node | None:
    """The bias of the product that is the reader's first argument, which the product then no longer adds."""
    value: Any = reader.args[0]
    shape, user = value.meta["like"], reader
    while value.target in VIEWS and set(value.users) == {user}:
        user, value = value, value.args[0]
    if not _adds_a_bias(value) or set(value.users) != {user} or value.meta["like"] != shape:
        return None
    bias, *factors = value.args
    value.target, value.args = aten.bmm.default, tuple(factors)
    return bias


def _adds_a_bias(node: Node) -> bool:
    """Is it a product plus one number per replica and output, as in the stack's linear layers?"""
    if node.target is not aten.baddbmm.default or node.kwargs:
        return False
    replicas, _, outputs = node.meta["like"][0]
    return bool(node.args[0].meta["like"] == (torch.Size((replicas, 1, outputs)), torch.float32))


def _take_layer(graph: Graph, relu: Node) -> None:
    """Let ReLU multiply by the weights of a layer that the kernel is made for, which multiplies in TF32."""
    product, bias = relu.args
    if product.target is not aten.bmm.default or not in_tf32():
        return
    rows, turned = product.args
    if turned.target is not aten.transpose.int or {axis % 3 for axis in turned.args[1:]} != {1, 2}:
        return
    weight, nodes = turned.args[0], graph.nodes
    (_, outputs, inputs), _ = weight.meta["like"]
    in_float32 = all(node.meta["like"][1] == torch.float32 for node in (rows, weight))
    between = nodes[nodes.index(product) + 1 : nodes.index(relu)]  # which could move the weights
    if between or not in_float32 or not linear_relu.suits(rows.meta["like"][0][1], outputs, inputs):
        return
    relu.target, relu.args = own.linear_relu.default, (rows, weight, bias)
    for unused in (product, turned):
        if not unused.users:
            unused.release()
            nodes.remove(unused)


def _take_product(graph: Graph, gradient: Node) -> None:
    """Let ReLU's gradient multiply by the few outputs of the layer after it."""
    product, activation, threshold = gradient.args
    if product.target is not aten.bmm.default or set(product.users) != {gradient} or threshold != 0:
        return
    (_, _, outputs), dtype = product.args[0].meta["like"]
    if outputs <= linear_gradient.FEW and dtype == torch.float32 and activation.meta["like"] == product.meta["like"]:
        gradient.target, gradient.args = own.through_relu.default, (*product.args, activation)
        product.release()
        graph.nodes.remove(product)


assert {bias_relu, cross_entropy, linear_gradient, linear_relu}  # they register the operations of these names
