"""Settings as fields of frozen dataclasses: each is declared once, with its default, its description and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import MISSING, field, fields
from typing import Any, Literal, get_args, get_origin


def setting(
    default: Any = MISSING,
    about: str = "",
    *,
    allowed: Any = None,
    panel: str = "",
    outcome: bool = True,
) -> Any:
    """A field of a dataclass.

    allowed: a ``Literal`` type, or a test of the value and, in words, what passes it; panel: the group in ``--help``;
    outcome: False for a setting that changes how a run is computed, not what comes out.
    """
    if get_origin(allowed) is Literal:
        allowed = one_of(*get_args(allowed))
    return field(default=default, metadata={"about": about, "allowed": allowed, "panel": panel, "outcome": outcome})


def with_plain_numbers(instance: Any) -> None:
    """Numbers of numpy and torch (of a sweep, say) become Python's: they are recorded, compared and printed as such."""
    for f in fields(instance):
        value = getattr(instance, f.name)
        if type(value).__module__ in ("numpy", "torch") and getattr(value, "ndim", 2) < 2:
            object.__setattr__(instance, f.name, value.item() if value.ndim == 0 else tuple(value.tolist()))


def validate(instance: Any, hyphens: bool = False) -> None:
    """Raise a ValueError that names the first setting with a value that is not allowed; hyphens: as it is written there."""
    for f in fields(instance):
        allowed = f.metadata.get("allowed")
        if allowed is None:
            continue
        passes, wanted = allowed
        value = getattr(instance, f.name)
        try:
            ok = bool(passes(value))
        except TypeError:  # text where a number is expected
            ok = False
        if not ok:
            name = f.name.replace("_", "-") if hyphens else f.name
            raise ValueError(f"{name} must be {wanted}, not {value!r}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


AT_LEAST_ONE = (lambda value: _is_whole(value) and value >= 1, "a whole number ≥ 1")
AT_LEAST_ONE_OR_NONE = (lambda value: value is None or (_is_whole(value) and value >= 1), "a whole number ≥ 1")
ZERO_OR_MORE = (lambda value: _is_whole(value) and value >= 0, "a whole number ≥ 0")
SEED = (lambda value: _is_whole(value) and -(2**63) <= value < 2**64, "a whole number from −2⁶³ to 2⁶⁴ − 1")
POSITIVE = (lambda value: 0 < value < math.inf, "a finite number > 0")
NOT_NEGATIVE = (lambda value: 0 <= value < math.inf, "a finite number ≥ 0")
ZERO_OR_ABOVE_ONE = (lambda value: value == 0 or 1 < value < math.inf, "0 or a finite number > 1")
SHARE = (lambda value: 0 < value <= 1, "in (0, 1]")
OPEN_SHARE = (lambda value: 0 < value < 1, "in (0, 1)")
BELOW_ONE = (lambda value: 0 <= value < 1, "in [0, 1)")


def one_of(*choices: Any) -> tuple[Callable[[Any], bool], str]:
    """One of these values."""
    return (lambda value: value in choices), " or ".join(filter(None, [", ".join(map(str, choices[:-1])), str(choices[-1])]))
