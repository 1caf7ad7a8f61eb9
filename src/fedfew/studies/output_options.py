"""What a study file may set for its tables and figures, checked before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedfew.studies.measures import MEASURES, SCORES
from fedfew.util.spelling import unknown


@dataclass(frozen=True)
class Option:
    right: str  # in words: "… must be …"
    holds: Callable[[Any], bool]


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _names(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_text, value))


def one_of(*words: str) -> Option:
    return Option(f"one of {', '.join(words)}", lambda value: value in words)


TEXT = Option("a text", _text)
NAMES = Option("a list of names", _names)
SCORE = one_of(*SCORES, "both")
COMPARED = one_of(*(name for name, measure in MEASURES.items() if measure.better))  # those with a best value
SOME_MEASURES = Option(
    f"a list of some of {', '.join(MEASURES)}", lambda value: _names(value) and all(name in MEASURES for name in value)
)
AXIS = Option("the name of an axis of the grid, such as models or mu", _text)
YES_OR_NO = Option("true or false", lambda value: isinstance(value, bool))
WHERE = Option(
    "a mapping of axes of the grid to a value or a list of values, like {mu: [0.01, 0.1]}",
    lambda value: isinstance(value, Mapping) and bool(value) and all(map(_text, value)),
)

COMMON = {"title": TEXT, "name": TEXT, "protocols": NAMES, "columns": NAMES, "rows": NAMES, "where": WHERE}
Options = Mapping[str, Option]


def check(what: str, spec: Any, kinds: Mapping[str, Options]) -> None:
    """Raise ValueError unless ``spec`` is right: a known kind with options that this kind takes. ``what``: table, figure."""
    if not isinstance(spec, Mapping):
        raise ValueError(f"a {what} must be a mapping with a kind, like {{kind: {next(iter(kinds))}}}, not {spec!r}")
    if "kind" not in spec:
        raise ValueError(f"a {what} needs a kind, one of: {', '.join(kinds)}; given: {dict(spec)}")
    kind = spec["kind"]
    if kind not in kinds:
        raise unknown(f"kind of {what}", str(kind), kinds)
    options = COMMON | dict(kinds[kind])
    for name, value in spec.items():
        if name == "kind":
            continue
        if name not in options:
            raise unknown(f"option of the {what} {kind}", str(name), options)
        if not options[name].holds(value):
            raise ValueError(f"{name} of the {what} {kind} must be {options[name].right}, not {value!r}")
