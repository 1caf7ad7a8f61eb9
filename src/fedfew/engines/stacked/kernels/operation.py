"""An operation of our own that PyTorch can record.

``torch.library.custom_op`` would make one, too, but its first call loads PyTorch's compiler, which takes seconds.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedfew.engines.stacked.kernels.compiling import compiled_in_place

_library = torch.library.Library("fedfew", "FRAGMENT")
BESIDE: set[Any] = set()
"""The operations whose results are needed late, and which a GPU may compute beside those that come next."""


def operation(name: str, mutates: tuple[str, ...] = (), beside: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """``torch.ops.fedfew.<name>`` from a function of tensors and plain values, which writes into the arguments named. It has no
    gradient. beside: it is one of BESIDE. Where its kernels are only compiled, it returns zeros: what lies in new memory might be
    no valid positions for another operation that takes them as such."""

    def made(function: Callable[..., Any]) -> Any:
        places = [at for at, parameter in enumerate(inspect.signature(function).parameters) if parameter in mutates]

        @functools.wraps(function)
        def implementation(*args: Any) -> Any:
            before = len(compiled_in_place())
            result = function(*args)
            if len(compiled_in_place()) > before:
                for tensor in _tensors(result):
                    tensor.zero_()
            for tensor in _tensors([args[at] for at in places]):
                _count_version(tensor)
            return result

        _library.define(name + torch.library.infer_schema(function, mutates_args=mutates))
        _library.impl(name, implementation, "CompositeExplicitAutograd")
        overload = getattr(torch.ops.fedfew, name).default
        if beside:
            BESIDE.add(overload)
        return overload

    return made


def _tensors(value: Any) -> list[Tensor]:
    return [part for part in pytree.tree_leaves(value) if isinstance(part, Tensor)]


def _count_version(tensor: Tensor) -> None:
    """Autograd, and a recording, see by this number that a tensor was changed."""
    if not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)
