"""Stacks: the parameters of many replicas as one tree of tensors with leading axes ``[clients, models]``.

A tree is a dict of tensors or of trees, so it can be saved, sent and compared without knowing what it is for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, TypeAlias, Union

import torch
from torch import Tensor

Tree: TypeAlias = dict[str, Union[Tensor, "Tree"]]


def tree_map(f: Callable[..., Tensor], tree: Tree, *others: Tree) -> Tree:
    """f applied to corresponding tensors of trees of one shape; an empty branch may be missing in the others."""
    result: Tree = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            result[name] = tree_map(f, value, *(branch(other, name) for other in others))
        else:
            result[name] = f(value, *(other[name] for other in others))
    return result


def named_leaves(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """(path, tensor) pairs; the path's parts are joined by ``/``."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from named_leaves(value, f"{prefix}{name}/")
        else:
            yield prefix + name, value


def leaves(tree: Tree) -> list[Tensor]:
    found: list[Tensor] = []
    for value in tree.values():
        if isinstance(value, dict):
            found += leaves(value)
        else:
            found.append(value)
    return found


def branch(tree: Tree, name: str) -> Tree:
    """The subtree of this name; empty if there is none (an empty one leaves no trace when a tree is taken apart)."""
    value = tree.get(name, {})
    assert isinstance(value, dict), f"{name} is a tensor"
    return value


def tensor(tree: Tree, name: str) -> Tensor:
    """The tensor of this name."""
    value = tree[name]
    assert isinstance(value, Tensor), f"{name} is a tree"
    return value


def from_named(tensors: dict[str, Tensor]) -> Tree:
    """The tree whose :func:`named_leaves` these are."""
    tree: Tree = {}
    for path, tensor in tensors.items():
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})  # type: ignore[assignment]  # parents are trees
        node[name] = tensor
    return tree


def stack(trees: list[Tree]) -> Tree:
    """Trees of one shape, stacked along a new leading axis."""
    return tree_map(lambda *tensors: torch.stack(tensors), *trees)


def take(tree: Tree, index: Tensor | int | slice) -> Tree:
    """The chosen entries of the leading axis."""
    return tree_map(lambda t: t[index], tree)


def is_everyone(index: Tensor, number: int) -> bool:
    """Are these all entries of a leading axis of this length, in their order?"""
    return index is everyone(number) or (index.shape[0] == number and torch.equal(index.cpu(), everyone(number)))


@lru_cache(maxsize=8)
def everyone(number: int) -> Tensor:
    """All entries of a leading axis of this length: always the same tensor, which is never written to."""
    return torch.arange(number)


def on_cpu(tensors: list[Tensor]) -> list[Tensor]:
    """The same few numbers on the CPU, in one transfer: a GPU is waited for once. Whole numbers are exact up to 2⁵³."""
    if not any(t.is_cuda for t in tensors):
        return tensors
    together = torch.cat([t.double().flatten() for t in tensors]).cpu()
    parts = together.split([t.numel() for t in tensors])
    return [part.reshape(t.shape).to(t.dtype) for part, t in zip(parts, tensors, strict=True)]


def put(tree: Tree, index: Tensor, values: Tree) -> None:
    """Write ``values`` at the chosen entries of the leading axis, in place."""
    tree_map(lambda t, v: t.index_copy_(0, index.to(t.device), v.to(t)), tree, values)


def to(tree: Tree, device: torch.device | str) -> Tree:
    return tree_map(lambda t: t.to(device), tree)


def subtract(a: Tree, b: Tree) -> Tree:
    """a − b; of booleans (a mask that the model keeps, say) as numbers, which :func:`add` makes booleans again."""
    return tree_map(lambda x, y: _number(x) - _number(y), a, b)


def add(a: Tree, b: Tree, scale: float | Tensor = 1.0) -> Tree:
    """a + scale · b; a tensor ``scale`` belongs to the leading axes. Whole numbers stay whole: their sum is rounded."""
    if not isinstance(scale, Tensor) and scale == 1:
        return tree_map(lambda x, y: _like(x, real(x) + real(y)), a, b)
    against = _beside(scale)
    return tree_map(lambda x, y: _like(x, real(x) + against(real(y)) * real(y)), a, b)


def scaled(tree: Tree, scale: float | Tensor) -> Tree:
    """scale · tree; a tensor ``scale`` belongs to the leading axes."""
    against = _beside(scale)
    return tree_map(lambda t: t * against(t), tree)


def squared_distance(a: Tree, b: Tree) -> Tensor:
    """‖a − b‖² over all that is in a, of two single replicas (no leading axes)."""
    return torch.stack(
        leaves(tree_map(lambda x, y: (_number(x) - _number(y)).square().sum(), a, b))
    ).sum()  # by name: order may differ


def dot(a: Tree, b: Tree) -> Tensor:
    """⟨a, b⟩ over all that is in a, of two single replicas. In an objective it adds a to the gradient with respect to b."""
    return torch.stack(leaves(tree_map(lambda x, y: (x * y).sum(), a, b))).sum()


def finite(tree: Tree) -> Tensor:
    """For each entry of the leading axis: is every number in it finite?"""
    return torch.stack([t.reshape(len(t), -1).isfinite().all(1) for t in leaves(tree)]).all(0)


def all_finite(tree: Tree) -> bool:
    """Is every number finite? A sum is, unless a number is not or it overflows: only then is every number looked at."""
    every = leaves(tree)
    if any(t.is_cuda for t in every):
        return math.isfinite(float(magnitude(every))) or _finite_throughout(every)
    return math.isfinite(sum(float(t.sum()) for t in every)) or _finite_throughout(every)


def magnitude(tensors: list[Tensor]) -> Tensor:
    """Σ|x| over tensors on a GPU but those of whole numbers, in few kernels and without waiting for it: finite if all of them
    are, unless it overflows."""
    asked = [t for t in tensors if t.is_floating_point() or t.is_complex()]
    return torch.stack([norm.double() for norm in torch._foreach_norm(asked, 1)]).sum() if asked else torch.zeros(())


def _finite_throughout(tensors: list[Tensor]) -> bool:
    return all(bool(t.isfinite().all()) for t in tensors)


def count_bytes(tree: Tree) -> int:
    return sum(t.numel() * t.element_size() for t in leaves(tree))


def bytes_each(tree: Tree) -> int:
    """Bytes of one entry of the leading axis."""
    return sum(t.numel() // t.shape[0] * t.element_size() for t in leaves(tree))


def _beside(scale: float | Tensor) -> Callable[[Tensor], Any]:
    """A function of tensors: what each is to be multiplied by, where ``scale`` belongs to the leading axes. Leaves of a tree are
    many and of one type: the scale is converted once for all."""
    if not isinstance(scale, Tensor):
        return lambda t: scale
    as_type = converted(scale)
    return lambda t: as_type(t.device, t.dtype).reshape(scale.shape + (1,) * (t.ndim - scale.ndim))


def converted(tensor: Tensor) -> Callable[[torch.device, torch.dtype], Tensor]:
    """``tensor.to``, remembered."""
    made: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def to(device: torch.device, dtype: torch.dtype) -> Tensor:
        if (device, dtype) not in made:
            made[device, dtype] = tensor.to(dtype).to(device, non_blocking=tensor.device.type == "cpu")
        return made[device, dtype]

    return to


def real(tensor: Tensor) -> Tensor:
    """Whole numbers (counts of batches, say) as float64, in which they are exact; all else as it is."""
    return tensor if tensor.is_floating_point() else tensor.double()


def _number(tensor: Tensor) -> Tensor:
    """Booleans as float64; all else as it is."""
    return tensor.double() if tensor.dtype == torch.bool else tensor


def _like(model: Tensor, value: Tensor) -> Tensor:
    """The value in the type of ``model``."""
    return value.to(model.dtype) if model.is_floating_point() else value.round().to(model.dtype)
