"""Products of linear layers by oneDNN, in recordings on a CPU.

PyTorch multiplies matrices of single precision with Intel's MKL. On processors of other makers MKL takes about twice as long as
oneDNN, with which PyTorch computes convolutions. Small products stay with MKL, where a call of oneDNN
costs more than it saves.
"""

from __future__ import annotations

import functools
import platform
from pathlib import Path
from typing import Any

import torch

from fedfew.engines.stacked.graph import Graph, Node

aten, onednn = torch.ops.aten, torch.ops.mkldnn
FEWEST_MULTIPLICATIONS = 2**20  # of a product
FEWEST_SAMPLES = (
    32  # of a product that is added to the weights: of fewer, the addition takes longer than MKL, which adds on the way
)


@functools.cache
def faster() -> bool:
    """Is oneDNN the faster one here? By the maker of the processor, not by a trial, so that a run is repeated to the last bit."""
    both = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available() and hasattr(onednn, "_linear_pointwise")
    return both and platform.machine() == "x86_64" and not _by_intel()


def _by_intel() -> bool:
    about = Path("/proc/cpuinfo")
    return "GenuineIntel" in (about.read_text() if about.exists() else platform.processor())


def multiply_by_onednn(graph: Graph) -> None:
    """Replace the large products of a recording."""
    for node in list(graph.nodes):
        if node.target is aten.mm.default and _large(*node.args):
            _replace(graph, node, *node.args)
        elif node.target is aten.addmm.default and not node.kwargs and _large(*node.args[1:]) and _is_bias(*node.args):
            bias, a, b = node.args
            _replace(graph, node, a, b, bias)
        elif node.target is aten.addmm_.default and _large(*node.args[1:]) and node.args[1].meta["like"][0][1] >= FEWEST_SAMPLES:
            weights, a, b = node.args
            product = _before(graph, node, aten.mm.default, a, b)
            _replace(graph, product, a, b)
            node.target, node.args = aten.add_.Tensor, (weights, product)


def _large(a: Node, b: Node) -> bool:
    ((rows, inner), dtype), (_, columns) = a.meta["like"], b.meta["like"][0]
    return bool(dtype == torch.float32 and rows * inner * columns >= FEWEST_MULTIPLICATIONS)


def _is_bias(bias: Node, a: Node, b: Node) -> bool:
    """One number per output, and not a matrix."""
    return bool(bias.meta["like"] == (b.meta["like"][0][1:], torch.float32))


def _replace(graph: Graph, product: Node, a: Node, b: Node, bias: Node | None = None) -> None:
    """oneDNN takes the second factor as a linear layer holds its weights, one row per output."""
    turned = b.args[0] if b.target is aten.t.default else _before(graph, product, aten.t.default, b)
    product.target, product.args = onednn._linear_pointwise.default, (a, turned, bias, "none", [], "")


def _before(graph: Graph, node: Node, target: Any, *args: Node) -> Node:
    """A new operation in front of this one."""
    made = graph.call_function(target, args)
    graph.nodes.remove(made)
    graph.nodes.insert(graph.nodes.index(node), made)
    return made
