"""What the settings of :func:`fedfew.data.load` may be, whatever the data are: told before anything is read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from numbers import Integral
from typing import Any, get_args

from fedfew.data.assemble import VocabularyFrom
from fedfew.data.table_preprocessing import Scale
from fedfew.federation import Pixels

Rule = tuple[Callable[[Any], bool], str]


def _whole(least: int) -> Rule:
    def passes(value: Any) -> bool:
        return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least

    return passes, f"a whole number ≥ {least}"


def _one_of(type_: Any) -> Rule:
    values = [f'"{value}"' for value in get_args(type_)]
    return lambda value: value in get_args(type_), " or ".join(filter(None, [", ".join(values[:-1]), values[-1]]))


def _names(value: Any) -> bool:
    """Also an index or an array of names."""
    return isinstance(value, str) or (isinstance(value, Collection) and all(isinstance(name, str) for name in value))


COLUMN: Rule = (lambda value: isinstance(value, str), "the name of a column, as text")
COLUMNS: Rule = (_names, "the name of a column or a list of names, as text")
RULES: dict[str, Rule] = {
    "clients": _whole(1),
    "seed": _whole(0),
    "sample": _whole(2),
    "at_least": _whole(0),
    "stratify": (lambda value: value in (True, False), "True or False"),
    "partition": (lambda value: isinstance(value, str), 'text, as "iid" or "dirichlet:0.5"'),
    "client": COLUMN,
    "group": COLUMN,
    "label": COLUMNS,
    "input": COLUMNS,
    "pixels": _one_of(Pixels),
    "scale": _one_of(Scale),
    "vocabulary_from": _one_of(VocabularyFrom),
}


def check(settings: Mapping[str, Any]) -> None:
    """Refuse values of the wrong kind."""
    for name, (passes, wanted) in RULES.items():
        if (value := settings[name]) is not None and not passes(value):
            raise ValueError(f"{name} must be {wanted}, not {value!r}")
