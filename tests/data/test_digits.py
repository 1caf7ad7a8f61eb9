"""The embedded digits."""

from __future__ import annotations

import pytest

from fedfew.data import digits, load, names
from fedfew.federation import Federation


def same(a: Federation, b: Federation) -> bool:
    return a.fingerprint() == b.fingerprint()


def test_digits_are_one_of_them() -> None:
    assert names()[0] == "digits"
    assert same(load("digits"), digits())
    assert same(load("digits", clients=5, partition="dirichlet:0.3", seed=2), digits(5, "dirichlet", alpha=0.3, seed=2))
    assert load("digits", partition="pathological:2", clients=10, sample=500).about["rows"] == 500
    with pytest.raises(ValueError, match="did you mean 'rotation'"):
        digits(partition="rotatoin")  # type: ignore[arg-type]
