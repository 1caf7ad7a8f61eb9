"""Steps of a recording that write over an argument nobody else needs: less memory is allocated, read and written."""

from __future__ import annotations

from typing import Any

import torch

from fedfew.engines.stacked.graph import Graph, Node

aten = torch.ops.aten

FRESH = {  # operations that return new memory, and never a view of an argument
    *(aten.baddbmm.default, aten.bmm.default, aten.mm.default, aten.addmm.default, aten.convolution.default),
    *(aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.neg.default),
    *(aten.exp.default, aten.log.default, aten.relu.default, aten.threshold_backward.default),
    *(aten.amax.default, aten.sum.dim_IntList, aten.gather.default, aten.scatter_add.default, aten.index_select.default),
    *(aten._to_copy.default, aten.clone.default, aten.arange.default),
}
TWINS = {  # operations of one element at a time, whose result may take the place of their first argument
    aten.add.Tensor: aten.add_.Tensor,
    aten.sub.Tensor: aten.sub_.Tensor,
    aten.mul.Tensor: aten.mul_.Tensor,
    aten.div.Tensor: aten.div_.Tensor,
    aten.neg.default: aten.neg_.default,
    aten.exp.default: aten.exp_.default,
    aten.log.default: aten.log_.default,
    aten.relu.default: aten.relu_.default,
    aten.scatter_add.default: aten.scatter_add_.default,
}
WRITERS = set(TWINS.values())
COMMUTE = {aten.add.Tensor, aten.mul.Tensor}
VIEWS = {aten.view.default, aten._unsafe_view.default, aten.transpose.int, aten.permute.default, aten.unsqueeze.default}


def write_in_place(graph: Graph) -> None:
    """Let operations write over what nobody reads after them."""
    place = {node: at for at, node in enumerate(graph.nodes)}
    writes = [
        at for node, at in place.items() if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
    ]
    for node in place:  # first, for what is scattered is then read later, and must be what it was
        if node.target is aten.add.Tensor:
            _scatter_into_other(node, place, writes)
    for node in place:
        if node.target not in TWINS or _scatters_itself(node):
            continue
        if _free(node.args[0], node, place):
            node.target = TWINS[node.target]
        elif node.target in COMMUTE and not node.kwargs and _free(node.args[1], node, place):
            node.target, node.args = TWINS[node.target], node.args[::-1]


def _scatters_itself(node: Node) -> bool:
    """Elements are added to others of the same tensor, which must stay as it is until all are read."""
    return node.target is aten.scatter_add.default and _memory(node.args[0]) is _memory(node.args[3])


def _memory(value: Any) -> Any:
    """The node that made what this is a view of."""
    while isinstance(value, Node) and value.target in VIEWS:
        value = value.args[0]
    return value


def _scatter_into_other(total: Node, place: dict[Node, int], writes: list[int]) -> None:
    """zeros.scatter_add(…) + other: scatter into the other, as in the gradient of a cross-entropy; unless the recording itself
    writes in between."""
    for part, other in (total.args, total.args[::-1]):
        if isinstance(part, Node) and part.target is aten.scatter_add.default and len(part.users) == 1 and not total.kwargs:
            zeros: Any = part.args[0]
            alike = part.meta.get("like") == total.meta.get("like")
            written = any(place[part] < at < place[total] for at in writes)
            if zeros.target is aten.new_zeros.default and alike and not written and _free(other, total, place):
                total.target, total.args = aten.scatter_add_.default, (other, *part.args[1:])
                return


def _free(value: Any, user: Node, place: dict[Node, int]) -> bool:
    """Is the memory of this of no use after its user, which returns the same shape, type and layout?"""
    if not isinstance(value, Node) or any(value.meta.get(of) != user.meta.get(of) for of in ("like", "stride")):
        return False
    reader = user
    while True:
        others = [other for other in value.users if other is not reader]
        if any(other.target not in FRESH or place[other] > place[user] for other in others):
            return False
        if value.target not in VIEWS and value.target not in WRITERS:  # they return an argument's memory
            return value.target in FRESH
        reader, value = value, value.args[0]
