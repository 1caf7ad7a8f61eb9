"""A recording as a program of PyTorch's own interpreter: its operations follow each other without Python in between.

For small tensors Python takes longer to call an operation than the operation takes. The program is written in the interpreter's
own language (TorchScript's intermediate representation) rather than made by ``torch.jit.trace``, which takes ten times as long.
Where that is not possible, a recording is replayed by Python.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedfew.engines.stacked.graph import Graph, Node

DTYPES = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.bool: 11,
    torch.bfloat16: 15,
}  # as the interpreter numbers them
FORMATS = {torch.contiguous_format: 0, torch.preserve_format: 1, torch.channels_last: 2}
NUMBERS = {"number": "Scalar", "Optional[number": "Scalar?"}  # names of types in signatures and in programs
# operations whose second tensor may be a number
WITH_NUMBERS = {"aten::add", "aten::sub", "aten::mul", "aten::div", "aten::floor_divide"}


class NotScriptableError(Exception):
    """The recording does something that the program cannot."""


def scripted(graph: Graph, constants: dict[str, Tensor]) -> Callable[..., Any] | None:
    """The graph as a function of its tensors; None where the interpreter does not take it."""
    try:
        writer = _Writer(graph)
        text, needed, structure = writer.written()
        program = torch._C.parse_ir(text)
        lines = list(program.nodes())
        if any(lines[at].schema() == "(no schema)" for at in writer.first.values()):
            return None  # the interpreter does not know all operations
        function = torch._C._create_function_from_graph("recording", program)
    except (NotScriptableError, RuntimeError, AttributeError):  # the interpreter is not part of PyTorch's promises
        return None
    fixed = tuple(constants[name] for name in needed)

    def replay(*tensors: Tensor) -> Any:
        before = torch._C._get_graph_executor_optimize()
        torch._C._set_graph_executor_optimize(False)  # it would run the program twice to learn shapes, and then rewrite it
        try:
            found = function(*tensors, *fixed)
        finally:
            torch._C._set_graph_executor_optimize(before)
        return _rebuilt(structure, iter(found))

    return replay


def _rebuilt(structure: Any, found: Iterator[Tensor]) -> Any:
    """The structure with tensors in place of its nodes."""
    if isinstance(structure, Node):
        return next(found)
    if isinstance(structure, dict):
        return {name: _rebuilt(part, found) for name, part in structure.items()}
    return type(structure)([_rebuilt(part, found) for part in structure])


class _Writer:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._lines: list[str] = []
        self._literals: dict[str, str] = {}
        self.first: dict[Any, int] = {}  # by operation: the line in which it is used first

    def written(self) -> tuple[str, list[str], Any]:
        """The program, the names of the constants that it takes after the recording's own arguments, and what the recording
        returns: nodes in lists, tuples and dicts, of which the program returns the nodes alone."""
        given = [node for node in self.graph.nodes if node.op == "placeholder"]
        fixed: dict[str, list[Node]] = {}
        for node in self.graph.nodes:
            if node.op == "get_attr":
                fixed.setdefault(node.target, []).append(node)
        self._names = {node: f"%{node.name}" for node in self.graph.nodes} | {
            node: f"%fixed_{name}" for name, nodes in fixed.items() for node in nodes
        }
        for node in self.graph.nodes:
            if node.op == "call_function" and node.target is not operator.getitem:
                self._operation(node)
        (structure,) = self.graph.output_node().args
        flat = pytree.tree_leaves(structure)
        if not all(isinstance(node, Node) for node in flat):
            raise NotScriptableError("it returns something that is no tensor")
        taken = [self._names[node] for node in given] + [f"%fixed_{name}" for name in fixed]
        arguments = ", ".join(f"{name} : Tensor" for name in taken)
        body = "\n  ".join(self._lines)
        every = ", ".join(self._names[node] for node in flat)
        kinds = ", ".join("Tensor" for _ in flat)
        last = f"%every : ({kinds}) = prim::TupleConstruct({every})\n  return (%every)"
        return f"graph({arguments}):\n  {body}\n  {last}\n", list(fixed), structure

    def _operation(self, node: Node) -> None:
        operation, arguments, kinds = _signature(node.target)
        given = dict(zip(arguments, node.args, strict=False)) | node.kwargs
        inputs = [self._value(given.get(name, default), kind) for name, (kind, default) in arguments.items()]
        numbers = [name for name, (kind, _) in arguments.items() if kind == "Tensor" and not isinstance(given.get(name), Node)]
        if numbers and not (numbers == ["other"] and operation.rstrip("_") in WITH_NUMBERS):
            raise NotScriptableError(f"{operation} takes numbers in place of tensors")
        self.first.setdefault(node.target, len(self._lines))
        call = f"{operation}({', '.join(inputs)})"
        parts = {user.args[1]: user for user in node.users if user.target is operator.getitem}
        if kinds == ["Tensor"]:
            self._lines.append(f"{self._names[node]} : Tensor = {call}")
        elif kinds == ["List[Tensor]"]:
            self._lines.append(f"{self._names[node]} : Tensor[] = {call}")
            for at, part in parts.items():
                where = self._value(at, "int")
                self._lines.append(f"{self._names[part]} : Tensor = aten::__getitem__({self._names[node]}, {where})")
        elif not kinds:
            self._lines.append(call)
        elif all(kind == "Tensor" for kind in kinds):
            names = ", ".join(f"{self._part(parts, at, node)} : Tensor" for at in range(len(kinds)))
            self._lines.append(f"{names} = {call}")
        else:
            raise NotScriptableError(f"{operation} returns {kinds}")

    def _part(self, parts: dict[Any, Node], at: int, node: Node) -> str:
        return self._names[parts[at]] if at in parts else f"{self._names[node]}_unused_{at}"

    def _value(self, value: Any, kind: str) -> str:
        """The name under which the program knows an argument."""
        if isinstance(value, Node):
            return self._names[value]
        if isinstance(value, list | tuple):
            element = kind.removeprefix("Optional[").removeprefix("List[").rstrip("]")
            members = [self._value(part, element) for part in value]
            of = "Tensor?" if "Optional[Tensor" in kind else NUMBERS.get(element, element)
            fixed = not any(isinstance(part, Node) for part in value)
            return self._defined(f"{of}[] = prim::ListConstruct({', '.join(members)})", fixed)
        if isinstance(value, float) and not math.isfinite(value):  # which the language cannot spell
            spelt = self._defined(f'str = prim::Constant[value="{value}"]()')
            return self._defined(f"float = aten::Float({spelt})")
        return self._defined(_literal(value))

    def _defined(self, definition: str, fixed: bool = True) -> str:
        """The name of a new value; fixed: the same wherever it is defined, so once is enough."""
        if fixed and definition in self._literals:
            return self._literals[definition]
        name = f"%literal_{len(self._lines)}"
        self._lines.append(f"{name} : {definition}")
        if fixed:
            self._literals[definition] = name
        return name


@cache
def _signature(target: Any) -> tuple[str, dict[str, tuple[str, Any]], list[str]]:
    """An operation's name, its arguments' types and defaults by name, and the types of what it returns."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        raise NotScriptableError(f"{target} is no operation of PyTorch")
    arguments = {a.name: (str(a.type), a.default_value) for a in schema.arguments}
    return schema.name, arguments, [str(returned.type) for returned in schema.returns]


def _literal(value: Any) -> str:
    if value is None:
        return "NoneType = prim::Constant()"
    if isinstance(value, bool):
        return f"bool = prim::Constant[value={int(value)}]()"
    if isinstance(value, int):
        return f"int = prim::Constant[value={value}]()"
    if isinstance(value, float):
        return f"float = prim::Constant[value={value!r}]()"
    if isinstance(value, str) and (value.isidentifier() or not value):
        return f'str = prim::Constant[value="{value}"]()'
    if isinstance(value, torch.dtype) and value in DTYPES:
        return f"int = prim::Constant[value={DTYPES[value]}]()"
    if isinstance(value, torch.memory_format) and value in FORMATS:
        return f"int = prim::Constant[value={FORMATS[value]}]()"
    if value is torch.strided:
        return "int = prim::Constant[value=0]()"
    if isinstance(value, torch.device):
        return f'Device = prim::Constant[value="{value}"]()'
    raise NotScriptableError(f"{value!r} has no place in a program")
