"""Text and YAML values become what a setting is."""

from __future__ import annotations

from typing import Literal

import pytest

from fedfew.util.conversion import convert


@pytest.mark.parametrize(
    ("value", "hint", "converted"),
    [
        ("none", str | None, None),
        ("3", int | None, 3),
        ("1;2", tuple[float, ...], (1.0, 2.0)),
        (2.0, int, 2),
        ("Yes", bool, True),
        ("2", Literal[1, 2], 2),
    ],
)
def test_conversion(value: object, hint: object, converted: object) -> None:
    assert convert(value, hint, "x") == converted


def test_conversion_says_what_would_be_right() -> None:
    with pytest.raises(ValueError, match=r"x must be a whole number, or none, not 'a'"):
        convert("a", int | None, "x")
