"""The embedded digits."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedfew.data import digits, load, names
from fedfew.data.embedded import digit_data
from fedfew.federation import Federation


def same(a: Federation, b: Federation) -> bool:
    return a.fingerprint() == b.fingerprint()


def test_digits_are_those_of_scikit_learn() -> None:
    data, theirs = digit_data(), load_digits()
    np.testing.assert_array_equal(data.x[:, 0], (theirs.images / 16).astype(np.float32))
    np.testing.assert_array_equal(data.y, theirs.target)


def test_digits_are_one_of_them() -> None:
    assert names()[0] == "digits"
    assert same(load("digits"), digits())
    assert same(load("digits", clients=5, partition="dirichlet:0.3", seed=2), digits(5, "dirichlet", alpha=0.3, seed=2))
    assert load("digits", partition="pathological:2", clients=10, sample=500).about["rows"] == 500
    with pytest.raises(ValueError, match="did you mean 'rotation'"):
        digits(partition="rotatoin")  # type: ignore[arg-type]
