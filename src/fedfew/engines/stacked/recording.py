"""What a function does to tensors, written down while it does it: a graph of plain tensor operations.

PyTorch's own tracer would do, but it keeps a fake twin of every result, which is four fifths of its time; on a GPU, where a run
records a step for each number of clients, that was most of the wait before the first rounds.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from fedfew.engines.stacked.graph import Graph, Node, replaced

READS_A_NUMBER = torch.ops.aten._local_scalar_dense.default


def record(function: Callable[..., Any], tensors: tuple[Tensor, ...]) -> tuple[Graph, dict[str, Tensor]]:
    """Run the function, and return what it did, below vmap and autograd, as a graph of the same arguments.

    Tensors that it takes from elsewhere become constants, which are returned by name. A node's ``meta["like"]`` is the shape and
    type of its tensor.
    """
    recorder, outer = Recorder(tensors), Recorder.current()
    _running.recorder = recorder
    try:
        with recorder:
            result = function(*tensors)
    finally:
        _running.recorder = outer
    return recorder.finished(result)


_running = threading.local()


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
        if func is READS_A_NUMBER:
            raise RuntimeError("a step must not depend on the value of a number on the device (.item(), if tensor: …)")
        result = func(*args, **(kwargs or {}))
        node = self._graph.call_function(func, self._arguments(args), self._arguments(kwargs or {}))
        if isinstance(result, Tensor):
            self._put(result, node)
        elif isinstance(result, tuple | list):
            for at, part in enumerate(result):
                if isinstance(part, Tensor):
                    self._put(part, self._graph.call_function(operator.getitem, (node, at)))
        return result

    def replayed(
        self, graph: Graph, constants: dict[str, Tensor], replay: Callable[..., Any], tensors: tuple[Tensor, ...]
    ) -> Any:
        """``replay(*tensors)``, which does what this graph says: its nodes are copied rather than recorded a second time."""
        self.__exit__(None, None, None)
        try:
            result = replay(*tensors)
        finally:
            self.__enter__()
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
        node.meta["like"] = (tensor.shape, tensor.dtype)
        self._nodes[tensor] = node

    def _arguments(self, value: Any) -> Any:
        """The same with nodes in place of tensors."""
        if isinstance(value, Tensor):
            return self._argument(value)
        if isinstance(value, tuple | list):
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
