"""What a function does to tensors, written down while it does it: a graph of plain tensor operations.

PyTorch's own tracer would do, but it keeps a fake twin of every result, which is four fifths of its time; on a GPU, where a run
records a step for each number of clients, that was most of the wait before the first rounds.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from fedfew.engines.stacked.graph import SEQUENCES, Graph, Node, replaced
from fedfew.engines.stacked.kernels.compiling import compiled_only

T = TypeVar("T")
NEEDS_VALUES = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)  # .item(); nonzero, a choice by a mask


class NotRecordableError(RuntimeError):
    """What a function does depends on more than its arguments' shapes."""


def record(function: Callable[..., Any], tensors: tuple[Tensor, ...]) -> tuple[Graph, dict[str, Tensor]]:
    """Run the function, and return what it did, below vmap and autograd, as a graph of the same arguments.

    Tensors that it takes from elsewhere become constants, which are returned by name. A node's ``meta["like"]`` is the shape and
    type of its tensor, ``meta["stride"]`` how it lies in memory.
    """
    recorder, outer = Recorder(tensors), Recorder.current()
    _running.recorder = recorder
    try:
        with recorder:
            result = function(*tensors)
    finally:
        _running.recorder = outer
    return recorder.finished(result)


def without_kernels(function: Callable[[], T]) -> T:
    """What the function returns, which depends on shapes alone: its kernels are not started but compiled side by side."""
    found: list[T] = []
    try:
        record(lambda: found.append(function()), ())
    except NotRecordableError:
        return function()
    return found[0]


_running = threading.local()


@contextmanager
def paused() -> Iterator[None]:
    """Within: nothing is recorded."""
    recorder = Recorder.current()
    if recorder is None:
        yield
        return
    recorder.__exit__(None, None, None)
    try:
        yield
    finally:
        recorder.__enter__()


def _mask_free(func: Any, args: tuple[Any, ...]) -> bool:
    """Is this a choice by positions? By a mask, the number of chosen ones depends on its values."""
    if func is not torch.ops.aten.index.Tensor:
        return False
    return not any(at is not None and at.dtype in (torch.bool, torch.uint8) for at in args[1])


def _compiled(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What one of our own operations returns: zeros where its kernels could be compiled without being started."""
    with compiled_only():
        return func(*args, **kwargs)


class Recorder(TorchDispatchMode):
    """Writes down what happens while it is active."""

    @staticmethod
    def current() -> Recorder | None:
        """The one that is active in this thread."""
        found: Recorder | None = getattr(_running, "recorder", None)
        return found

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch's hook: to be skipped by its compiler, a mode loads the compiler first, which takes a second."""
        return False

    def __init__(self, tensors: tuple[Tensor, ...]) -> None:
        super().__init__()
        self._graph = Graph()
        self._constants: dict[str, Tensor] = {}
        self._nodes = WeakTensorKeyDictionary()  # weak, or everything computed would stay in memory to the end
        for at, tensor in enumerate(tensors):
            self._put(tensor, self._graph.placeholder(f"given_{at}"))

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if any(tag in func.tags for tag in NEEDS_VALUES) and not _mask_free(func, args):
            raise NotRecordableError(f"a step must not depend on the values in a tensor (.item(), if tensor: …), as {func} does")
        if func is torch.ops.aten.lift_fresh.default:  # torch.tensor(…) in a model, which may then change it in place
            func = torch.ops.aten.lift_fresh_copy.default
        result = _compiled(func, args, kwargs or {}) if func.namespace == "fedfew" else func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and not isinstance(args[0], Tensor):  # vmap makes a tensor of a number by this
            func, args, kwargs = torch.ops.aten.scalar_tensor.default, args[:1], {"dtype": result.dtype, "device": result.device}
        node = self._graph.call_function(func, self._arguments(args), self._arguments(kwargs or {}))
        if isinstance(result, Tensor):
            self._put(result, node)
        elif isinstance(result, SEQUENCES):
            for at, part in enumerate(result):
                if isinstance(part, Tensor):
                    self._put(part, self._graph.call_function(operator.getitem, (node, at)))
        return result

    def replayed(
        self, graph: Graph, constants: dict[str, Tensor], replay: Callable[..., Any], tensors: tuple[Tensor, ...]
    ) -> Any:
        """``replay(*tensors)``, which does what this graph says: its nodes are copied rather than recorded a second time."""
        with paused():
            result = replay(*tensors)
        given, copies = iter(tensors), dict[Node, Any]()
        for node in graph.nodes:
            if node.op == "placeholder":
                copies[node] = self._argument(next(given))
            elif node.op == "get_attr":
                copies[node] = self._argument(constants[node.target])
            elif node.op == "call_function":
                args, kwargs = (replaced(part, copies) for part in (node.args, node.kwargs))
                copies[node] = self._graph.call_function(node.target, args, kwargs)
                copies[node].meta = node.meta
        returned = zip(pytree.tree_leaves(result), pytree.tree_leaves(graph.output_node().args[0]), strict=True)
        for tensor, node in returned:
            if isinstance(tensor, Tensor):
                self._put(tensor, copies[node])
        return result

    def _put(self, tensor: Tensor, node: Node) -> None:
        node.meta["like"], node.meta["stride"] = (tensor.shape, tensor.dtype), tensor.stride()
        self._nodes[tensor] = node

    def _arguments(self, value: Any) -> Any:
        """The same with nodes in place of tensors."""
        if isinstance(value, Tensor):
            return self._argument(value)
        if isinstance(value, SEQUENCES):
            return type(value)(map(self._arguments, value))
        if isinstance(value, dict):
            return {name: self._arguments(part) for name, part in value.items()}
        return value

    def _argument(self, value: Tensor) -> Any:
        node = self._nodes.get(value)
        if node is None:
            name = f"constant_{len(self._constants)}"
            self._constants[name] = value
            node = self._graph.get_attr(name)
            self._put(value, node)
        return node

    def finished(self, result: Any) -> tuple[Graph, dict[str, Tensor]]:
        self._graph.output(self._arguments(result))
        return self._graph, self._constants
