"""Types of hyperparameters that say which values are allowed: ``lam: NotNegative = 0.1``; so do ``Literal`` and ``bool``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints


def is_number(value: object, least: float = 0.0) -> bool:
    """Is this a finite number ≥ ``least``? Settings may come from a file or a command line."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value < math.inf


def is_whole(value: object, least: int = 1) -> bool:
    """Is this a whole number ≥ ``least``?"""
    return isinstance(value, int) and is_number(value, least)


@dataclass(frozen=True)
class Rule:
    """Which values are allowed, as a test and in words."""

    passes: Callable[[Any], bool]
    wanted: str
    up_to_clients: bool = False  # whether it must not be more than the number of clients


NotNegative = Annotated[float, Rule(is_number, "a finite number ≥ 0")]
Positive = Annotated[float, Rule(lambda value: is_number(value) and value > 0, "a finite number > 0")]
ZeroToOne = Annotated[float, Rule(lambda value: is_number(value) and value <= 1, "a number in [0, 1]")]
BelowOne = Annotated[float, Rule(lambda value: is_number(value) and value < 1, "a number in [0, 1)")]
Share = Annotated[float, Rule(lambda value: is_number(value) and 0 < value <= 1, "a number in (0, 1]")]
OpenShare = Annotated[float, Rule(lambda value: is_number(value) and 0 < value < 1, "a number in (0, 1)")]
AtLeastOne = Annotated[int, Rule(is_whole, "a whole number ≥ 1")]
ZeroOrMore = Annotated[int, Rule(lambda value: is_whole(value, 0), "a whole number ≥ 0")]
NumberOfModels = Annotated[int, Rule(is_whole, "a whole number ≥ 1", up_to_clients=True)]
LayerName = Annotated[str, Rule(lambda value: isinstance(value, str), "the name of a layer")]


@cache
def rules(cls: type) -> dict[str, Rule]:
    """The rules of a method's hyperparameters, by name, from the types of its fields."""
    try:
        hints = get_type_hints(cls, include_extras=True)
    except NameError:  # of a class of the user's own, whose annotations are not known outside of the function that made it
        hints = {}
    found = {f.name: bool if isinstance(f.default, bool) else hints.get(f.name) for f in fields(cls)}
    return {name: rule for name, hint in found.items() if (rule := _rule(hint)) is not None}


def _rule(hint: Any) -> Rule | None:
    origin, inside = get_origin(hint), get_args(hint)
    if hint is bool:
        return Rule(lambda value: isinstance(value, bool), "True or False")  # text such as "false" would count as true
    if origin is Literal:
        return Rule(lambda value: value in inside, " or ".join([", ".join(map(repr, inside[:-1])), repr(inside[-1])]))
    if origin is Annotated:
        return next((extra for extra in inside[1:] if isinstance(extra, Rule)), None)
    if origin in (Union, UnionType) and len(inside) == 2 and NoneType in inside:
        other = _rule(next(part for part in inside if part is not NoneType))
        return other and Rule(lambda value: value is None or other.passes(value), f"None or {other.wanted}")
    return None
