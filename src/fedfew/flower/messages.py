"""The messages between the server and a site, and checks of what is in them."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from fedfew.stack import Tree, count_bytes, named_leaves

Value: TypeAlias = bool | int | float | str | list[int] | list[float]

JOIN, TRAIN, SCORE = "join", "train", "score"
SHARE_KEYS, MASK, REVEAL = "share-keys", "mask", "reveal"  # the further steps of a round with masked aggregation
MAX_LIST = 1000  # values of one name
FAILED = "failed"  # a site's reply where it could not do what was asked


class RefusedError(ValueError):
    """A message that cannot be used, and why in a few words; its contents are never quoted."""


class ChangedError(RefusedError):
    """A site's data are no longer those that it joined with."""


class RevealedError(RefusedError):
    """Masked aggregation: a site has revealed its shares of the round already, and does so once only."""


@dataclass
class SiteMessage:
    """A kind, some values by name, and a tree of tensors of one client (without a leading client axis)."""

    kind: str
    values: dict[str, Value] = field(default_factory=dict)
    tree: Tree = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Bytes of its tensors."""
        return count_bytes(self.tree)

    def integer(self, name: str, least: int = 0, most: int | None = None) -> int:
        """The integer of this name, which must be within bounds."""
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
            bounds = f"from {least}" + ("" if most is None else f" to {most}")
            raise RefusedError(f"{name} is not a whole number {bounds}")
        return value

    def number(self, name: str, or_infinite: float | None = None) -> float:
        """The number of this name, which must be finite, or this infinity."""
        value = self.values.get(name)
        if isinstance(value, float) and value == or_infinite:
            return value
        return self.numbers(name, 1)[0] if isinstance(value, list) else self._finite(name, value)

    def numbers(self, name: str, count: int, or_infinite: bool = False) -> list[float]:
        """The list of this name, which must hold ``count`` finite numbers; ``or_infinite``: or +inf."""
        values = self.values.get(name)
        if not isinstance(values, list) or len(values) != count:
            raise RefusedError(f"{name} is not a list of {count} numbers")
        return [value if or_infinite and value == math.inf else self._finite(name, value) for value in values]

    def text(self, name: str) -> str:
        value = self.values.get(name)
        if not isinstance(value, str):
            raise RefusedError(f"{name} is not a text")
        return value

    def flag(self, name: str) -> bool:
        return self.values.get(name) is True

    @staticmethod
    def _finite(name: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
            raise RefusedError(f"{name} is not finite")
        return float(value)


@dataclass(frozen=True)
class Spec:
    """The shape and type that a tensor must have."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> Spec:
        return cls(tuple(tensor.shape), tensor.dtype)


Specs: TypeAlias = Mapping[str, Spec]


def specs(tree: Tree) -> dict[str, Spec]:
    """Shape and type by path."""
    return {path: Spec.of(t) for path, t in named_leaves(tree)}


def check_tree(tree: Tree, expected: Specs) -> None:
    """Refuse a tree with other names, shapes or types than expected, or with a value that is not finite."""
    found = dict(named_leaves(tree))
    check_names(found, expected)
    for path, tensor in found.items():
        if Spec.of(tensor) != expected[path]:
            raise RefusedError(f"{path} has shape {list(tensor.shape)} of {tensor.dtype}, not {list(expected[path].shape)} of "
                          f"{expected[path].dtype}")  # fmt: skip
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise RefusedError(f"{path} is not finite")


def check_names(found: Mapping[str, object], expected: Specs) -> None:
    missing = [name for name in expected if name not in found]
    if missing:
        raise RefusedError(f"{len(missing)} tensors are missing, the first is {missing[0]}")
    if len(found) > len(expected):
        raise RefusedError(f"{len(found) - len(expected)} tensors too many")
