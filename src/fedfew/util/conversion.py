"""Text and YAML values into the types that a setting declares."""

from __future__ import annotations

import re
import types
from typing import Any, Literal, Union, get_args, get_origin

_BOOLS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "none"}


def convert(value: Any, hint: Any, name: str) -> Any:
    """``value`` as the type ``hint``: bool, int, float, str, None, a Literal, a tuple of one of them, or a union."""
    try:
        return _convert(value, hint)
    except (TypeError, ValueError, KeyError):
        raise ValueError(f"{name} must be {in_words(hint)}, not {value!r}") from None


def in_words(hint: Any) -> str:
    """What kind of value a type hint asks for."""
    if _is_union(hint):
        return ", or ".join(in_words(kind) for kind in get_args(hint))
    if get_origin(hint) is Literal:
        *others, last = map(str, get_args(hint))
        return f"{', '.join(others)} or {last}" if others else last
    if get_origin(hint) is tuple:
        return "a list of names" if get_args(hint)[0] is str else "numbers separated by commas"
    return _WORDS.get(hint, str(hint))


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _convert(value: Any, hint: Any) -> Any:
    if _is_union(hint):
        return _first_that_fits(value, get_args(hint))
    if get_origin(hint) is Literal:
        return {str(choice): choice for choice in get_args(hint)}[str(value)]
    if get_origin(hint) is tuple:
        kind = get_args(hint)[0]
        if isinstance(value, str):  # a name may have spaces and commas in it, numbers have not
            value = [value] if kind is str else re.split(r"[,;\s]+", value.strip())
        return tuple(_convert(part, kind) for part in value)
    if hint is bool:
        return _BOOLS[str(value).lower()]
    if hint is type(None):
        return {"none": None}[str(value).lower()]
    if isinstance(value, bool) or (hint is str and not isinstance(value, str)):
        raise TypeError
    if hint is int and isinstance(value, float) and not value.is_integer():
        raise ValueError
    return hint(value)


def _first_that_fits(value: Any, kinds: tuple[Any, ...]) -> Any:
    for kind in sorted(kinds, key=lambda kind: kind is not type(None)):  # "none" is None even where text would do
        try:
            return _convert(value, kind)
        except (TypeError, ValueError, KeyError):
            continue
    raise ValueError
