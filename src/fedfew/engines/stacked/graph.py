"""A recording's operations in their order, and who uses what.

``torch.fx.Graph`` would do, but a node of it takes several times as long to make, and a run makes over
a thousand before its third round.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    from fedfew.engines.stacked.beside import Beside

SEQUENCES = (tuple, list)  # a union of types is made anew wherever it is written
Kind = Literal["placeholder", "get_attr", "call_function", "output"]  # an argument, a constant, an operation, what is returned


class Node:
    """One value; arguments are nodes, plain values, and lists, tuples and dicts of them."""

    __slots__ = ("_args", "_kwargs", "meta", "name", "op", "target", "users")

    def __init__(self, op: Kind, name: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.op, self.name, self.target = op, name, target
        self.users: dict[Node, None] = {}
        self.meta: dict[str, Any] = {}
        self._args, self._kwargs = args, kwargs
        self._use()

    @property
    def args(self) -> tuple[Any, ...]:
        return self._args

    @args.setter
    def args(self, args: tuple[Any, ...]) -> None:
        self.release()
        self._args = args
        self._use()

    @property
    def kwargs(self) -> dict[str, Any]:
        return self._kwargs

    def replace_all_uses_with(self, other: Node) -> None:
        for user in list(self.users):
            user.release()
            user._args, user._kwargs = (replaced(part, {self: other}) for part in (user._args, user._kwargs))
            user._use()

    def release(self) -> None:
        """Use nothing any more."""
        for node in nodes_in((self._args, self._kwargs)):
            node.users.pop(self, None)

    def _use(self) -> None:
        for node in nodes_in((self._args, self._kwargs)):
            node.users[self] = None


class Graph:
    """Nodes in the order in which they are computed; the output is the last."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._made = 0

    def placeholder(self, name: str) -> Node:
        return self._new("placeholder", name, (), {})

    def get_attr(self, name: str) -> Node:
        return self._new("get_attr", name, (), {})

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Node:
        """A new operation, after all others."""
        return self._new("call_function", target, args, kwargs or {})

    def output(self, value: Any) -> Node:
        return self._new("output", "output", (value,), {})

    def output_node(self) -> Node:
        return self.nodes[-1]

    def keep(self, wanted: Callable[[Node], bool]) -> None:
        """Drop nodes that nobody uses and that are not wanted for themselves, and then those that only they used."""
        left = []
        for node in reversed(self.nodes):
            if node.users or wanted(node):
                left.append(node)
            else:
                node.release()
        self.nodes = left[::-1]

    def _new(self, op: Kind, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
        node = Node(op, target if op == "placeholder" else f"value_{self._made}", target, args, kwargs)
        self._made += 1
        ended = self.nodes and self.nodes[-1].op == "output"
        self.nodes.insert(len(self.nodes) - 1 if ended else len(self.nodes), node)
        return node


def nodes_in(value: Any) -> list[Node]:
    """The nodes in an argument."""
    found: list[Node] = []
    _collect(value, found)
    return found


def _collect(value: Any, found: list[Node]) -> None:
    if isinstance(value, Node):
        found.append(value)
    elif isinstance(value, SEQUENCES):
        for part in value:
            _collect(part, found)
    elif isinstance(value, dict):
        for part in value.values():
            _collect(part, found)


def is_view(node: Node) -> bool:
    """Is it another view of its first argument, or one of several?"""
    return node.target in (operator.getitem, torch.ops.aten._unsafe_view.default) or getattr(node.target, "is_view", False)


def origin(node: Node) -> Node:
    """What the value is another view of, or one of several views."""
    while is_view(node):
        node = node.args[0]
    return node


def replaced(value: Any, by: dict[Node, Any]) -> Any:
    """An argument with some of its nodes replaced."""
    if isinstance(value, Node):
        return by.get(value, value)
    if isinstance(value, SEQUENCES):
        return type(value)([replaced(part, by) for part in value])
    if isinstance(value, dict):
        return {name: replaced(part, by) for name, part in value.items()}
    return value


def as_function(
    graph: Graph, constants: dict[str, Tensor], called: Callable[[Any], Any], beside: Beside | None = None
) -> Callable[..., Any]:
    """The graph as a function in Python of its arguments. It forgets every value after its last use, so that memory is reused.

    called: what is called for an operation. beside: a second stream for the operations that it takes.
    """
    known: dict[str, Any] = {}
    last: dict[Node, Node] = {}
    for node in graph.nodes:
        last |= dict.fromkeys(nodes_in((node.args, node.kwargs)), node)
    forgotten: dict[Node, list[Node]] = {}
    for node, user in last.items():
        forgotten.setdefault(user, []).append(node)

    def constant(value: Any) -> str:
        name = f"known_{len(known)}"
        known[name] = value
        return name

    def written(value: Any) -> str:
        if isinstance(value, Node):
            return value.name
        if isinstance(value, list):
            return f"[{', '.join(map(written, value))}]"
        if isinstance(value, tuple):
            return f"({''.join(f'{written(part)}, ' for part in value)})"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{name!r}: {written(part)}' for name, part in value.items())}}}"
        if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
            return repr(value)
        return constant(value)

    def call(node: Node) -> str:
        if node.target is operator.getitem:
            return f"{written(node.args[0])}[{written(node.args[1])}]"
        operation = called(node.target)
        if beside is not None and node in taken:
            operation = beside.running(operation)
        given = [*map(written, node.args), *(f"{name}={written(value)}" for name, value in node.kwargs.items())]
        return f"{constant(operation)}({', '.join(given)})"

    taken = set() if beside is None else {node for node in graph.nodes if beside.takes(graph, node)}
    lines: list[str] = []
    running: Node | None = None  # on the second stream
    kept: list[Node] = []  # what it reads, to be forgotten when it is done
    for node in graph.nodes:
        used = nodes_in((node.args, node.kwargs))
        if beside is not None and running is not None and (node in taken or (running in map(origin, used) and not is_view(node))):
            lines += [f"{constant(beside.join)}()", *(f"{read.name} = None" for read in kept)]
            running, kept = None, []
        if node in taken:
            running = node
        if node.op == "get_attr":
            lines.append(f"{node.name} = {written(constants[node.target])}")
        elif node.op == "call_function":
            lines.append(f"{node.name} = {call(node)}")
        elif node.op == "output":
            lines.append(f"return {written(node.args[0])}")
        unused = [] if node.op == "output" else forgotten.get(node, [])
        reads = [] if running is None else nodes_in((running.args, running.kwargs))
        kept += [read for read in unused if read in reads]
        lines += [f"{read.name} = None" for read in unused if read not in reads]
    arguments = ", ".join(node.name for node in graph.nodes if node.op == "placeholder")
    exec(f"def recording({arguments}):\n    " + "\n    ".join(lines), known)
    function: Callable[..., Any] = known["recording"]
    return function
