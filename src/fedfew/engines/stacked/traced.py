"""Functions recorded once per shape and then replayed as a flat list of tensor operations.

For small models nearly all the time of a stacked step goes into deciding what to compute: vmap's rules, autograd's bookkeeping,
module calls. Tracing pays that once; a replay only does the arithmetic. A recording holds for one objective and one set of
shapes, so an objective must be a pure function of its arguments: what changes from round to round goes into its context.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import cached_property, partial
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

import torch
from torch import Tensor

from fedfew.engines import onednn_products
from fedfew.engines.precision import not_rounded
from fedfew.engines.stacked.beside import Beside
from fedfew.engines.stacked.epilogues import fuse_epilogues
from fedfew.engines.stacked.graph import Graph, Node, as_function, nodes_in, origin
from fedfew.engines.stacked.in_place import write_in_place
from fedfew.engines.stacked.kernels import usable
from fedfew.engines.stacked.recording import Recorder, paused, record
from fedfew.engines.stacked.script import scripted
from fedfew.util.interrupts import held_back

Rewrite = Callable[["Recording"], "Recording"]
KEPT = 1024  # recordings; one objective needs one for each number of clients that are still in an epoch


class Recording:
    """A graph and the tensors it takes from elsewhere. It is compiled when first called, which takes as long as recording."""

    def __init__(self, graph: Graph, constants: dict[str, Tensor]) -> None:
        self.graph = graph
        self.constants = constants
        self.beside: Beside | None = None

    @cached_property
    def forward(self) -> Callable[..., Any]:
        return as_function(self.graph, self.constants, _direct, self.beside)

    def __call__(self, *tensors: Tensor) -> Any:
        return self.forward(*tensors)


class Traced:
    """Recordings of functions of tensors, found again by name and by the tensors' shapes."""

    def __init__(self) -> None:
        self._recordings: OrderedDict[Hashable, tuple[Recording, Callable[..., Any]]] = OrderedDict()
        self._seen: set[Hashable] = set()

    @property
    def operations(self) -> int:
        """Of the longest recording: what it computes, views of tensors not counted."""
        return max((sum(map(_computes, recording.graph.nodes)) for recording, _ in self._recordings.values()), default=0)

    def __call__(self, name: Hashable, function: Callable[..., Any], *tensors: Tensor, rewrite: Rewrite | None = None) -> Any:
        """``function(*tensors)``; functions of one name must do the same to tensors of the same shapes.

        rewrite: makes of the recording what is done in its place, the same for one name.
        """
        return self._found(_key(name, tensors), function, tensors, rewrite)

    def prepared(self, name: Hashable, function: Callable[..., Any], *tensors: Tensor) -> Callable[[], Any]:
        """The same, recorded now and replayed when it is called, in whatever thread."""
        _, replay = self._kept(_key(name, tensors), function, tensors, None)
        return partial(replay, *tensors)

    def _found(self, key: Hashable, function: Callable[..., Any], tensors: tuple[Tensor, ...], rewrite: Rewrite | None) -> Any:
        (recording, replay), recorder = self._kept(key, function, tensors, rewrite), Recorder.current()
        if recorder is not None:  # as part of a longer recording
            return recorder.replayed(recording.graph, recording.constants, replay, tensors)
        with not_rounded():  # what is rounded was recorded so
            return replay(*tensors)

    def _kept(
        self, key: Hashable, function: Callable[..., Any], tensors: tuple[Tensor, ...], rewrite: Rewrite | None
    ) -> tuple[Recording, Callable[..., Any]]:
        found = self._recordings.get(key)  # the hash of a long key takes its time
        if found is None:
            recording = recorded(function, tensors)
            recording = rewrite(recording) if rewrite else recording
            self._recordings[key] = found = recording, _replay(recording, tensors[0].device)
            if len(self._recordings) > KEPT:
                self._recordings.popitem(last=False)
        elif len(self._recordings) > KEPT // 2:
            self._recordings.move_to_end(key)
        return found

    def from_the_second_time(self, name: Hashable, function: Callable[..., Any], *tensors: Tensor) -> Any:
        """The same, but shapes that come once are not recorded, which takes as long as some calls: the clients of a round may
        never come together again."""
        key = _key(name, tensors)
        if key in self._seen:
            return self._found(key, function, tensors, None)
        self._seen.add(key)
        return function(*tensors)


def _key(name: Hashable, tensors: tuple[Tensor, ...]) -> Hashable:
    return name, tuple((t.shape, t.stride(), t.dtype) for t in tensors)


def _replay(recording: Recording, device: torch.device) -> Callable[..., Any]:
    """The function that is called in place of the recorded one. On a GPU operations wait for the device, not for Python."""
    if device.type == "cpu":
        write_in_place(recording.graph)
        if onednn_products.faster():
            onednn_products.multiply_by_onednn(recording.graph)
        drop_unused(recording.graph)
        program = scripted(recording.graph, recording.constants)
        if program is not None:
            return program
    elif usable(device):
        fuse_epilogues(recording.graph)
        recording.beside = Beside() if device.type == "cuda" else None
    return recording.forward


def recorded(function: Callable[..., Any], tensors: tuple[Tensor, ...]) -> Recording:
    """A recording made without a trace: what the function writes into its arguments is undone, as the replay will write it."""
    with paused():  # a longer recording takes the replay instead
        before = [(t, t._version, t.clone()) for t in tensors]
        try:
            with held_back():  # in the midst of PyTorch's own bookkeeping an interrupt may be lost
                graph, constants = record(function, tensors)
        finally:
            for tensor, version, value in before:
                if tensor._version != version or (
                    tensor.is_contiguous() and not torch.equal(tensor, value)
                ):  # _foreach_… count no version
                    tensor.copy_(value)
    _simplify(graph)
    return Recording(graph, constants)


def _simplify(graph: Graph) -> None:
    """Take out steps that do nothing (about a third of what vmap and autograd leave behind)."""
    written = {origin(node) for node in graph.nodes if _writes(node) for node in _written(node)}
    for node in graph.nodes:
        if node.op == "call_function" and (same := _same_as(node, written)) is not None:
            node.replace_all_uses_with(same)
    drop_unused(graph)


def drop_unused(graph: Graph) -> None:
    """Take out what nobody uses and what writes nowhere."""
    graph.keep(lambda node: node.op != "call_function" or _writes(node) or _draws(node))


_RESHAPES = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default, torch.ops.aten.expand.default)


def _writes(node: Node) -> bool:
    """Does this step change one of its arguments in place?"""
    return isinstance(node.target, torch._ops.OpOverload) and bool(node.target._schema.is_mutable)


def _written(node: Node) -> list[Node]:
    """The arguments that this step changes."""
    arguments = node.target._schema.arguments
    given = dict(zip([argument.name for argument in arguments], node.args, strict=False)) | node.kwargs
    changed = {argument.name for argument in arguments if argument.alias_info is not None and argument.alias_info.is_write}
    return nodes_in([value for name, value in given.items() if name in changed])


def _computes(node: Node) -> bool:
    """Is this step more than another view of a tensor?"""
    views = isinstance(node.target, torch._ops.OpOverload) and node.target.is_view
    return node.op == "call_function" and node.target not in (*_RESHAPES, operator.getitem) and not views


def _draws(node: Node) -> bool:
    """Does this step move on a generator of random numbers?"""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _same_as(node: Node, written: set[Node]) -> Node | None:
    """Which of its arguments a step that does nothing returns. A copy is not the same where it or what it copies is written."""
    copied: Node | None = None
    if node.target is torch.ops.aten.mul.Tensor:
        copied = _times_one(node.args[0], node.args[1], node)
    elif node.target is torch.ops.aten.where.self:
        copied = _either_way(node)
    elif node.target is torch.ops.aten.mul.Scalar and node.args[1] == 1 and _alike(node.args[0], node):
        copied = node.args[0]
    if copied is not None:
        return None if node in written or origin(copied) in written else copied
    if node.target is torch.ops.aten.t.default and node.args[0].target is torch.ops.aten.t.default:
        turned: Node = node.args[0].args[0]
        return turned
    return node.args[0] if _does_nothing(node) else None


def _times_one(a: Any, b: Any, product: Node) -> Node | None:
    """The other factor where one is all ones, as where autograd begins, and the product has the other's shape and layout."""
    for one, other in ((a, b), (b, a)):
        if _is_one(one) and isinstance(other, Node) and _alike(other, product):
            return other
    return None


def _either_way(choice: Node) -> Node | None:
    """What is chosen where both are the same, as where only a gradient was to be cut off."""
    _, a, b = choice.args
    return a if a is b and isinstance(a, Node) and _alike(a, choice) else None


def _is_one(node: Any) -> bool:
    if not isinstance(node, Node):
        return False
    shaped = node.target is torch.ops.aten.unsqueeze.default or node.target in _RESHAPES
    return node.target is torch.ops.aten.ones_like.default or (shaped and _is_one(node.args[0]))


def _does_nothing(node: Node) -> bool:
    if node.target in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):  # nothing is differentiated in a replay
        return True
    source = node.args[0] if node.args else None
    if not isinstance(source, Node) or not _alike(source, node):
        return False
    if node.target is torch.ops.aten.permute.default:
        return node.args[1] == sorted(node.args[1])
    if node.target is torch.ops.aten.slice.Tensor:
        return len(node.args) < 5 or node.args[4] == 1  # of all there is
    return node.target in _RESHAPES


def _alike(a: Node, b: Node) -> bool:
    """Of one shape, type and layout? How a convolution lays out its result depends on the strides of its argument, also on those
    that are never used: those of an axis of length 1."""
    return all(a.meta.get(of) == b.meta.get(of) for of in ("like", "stride"))


def _direct(target: Any) -> Any:
    """The same operation as torch's own function or method where there is one: called so, it costs half as much before any
    arithmetic as through ``torch.ops``."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return target
    name = target._schema.name.removeprefix("aten::")
    for owner, kind in ((torch, BuiltinFunctionType), (Tensor, MethodDescriptorType)):
        if isinstance(function := getattr(owner, name, None), kind):
            return function
    return target
