"""What finite samples cost: the counter-example by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedfew.studies.theory import statistical
from fedfew.studies.theory.check import FAILS


def test_the_printed_bound_fails_by_any_factor_where_clients_differ_in_size() -> None:
    """Excess NOISE²/8 on average over both clients (n = 2 and N), bound √(2/(N/2)): the ratio grows as √N/16·NOISE²."""
    found = statistical.unequal(np.random.default_rng(0), draws=4000)
    assert found.verdict == FAILS
    assert found.holds
    for samples, ratio in found.numbers["over_bound"].items():
        noise = statistical.NOISE**2
        expected = 0.5 * (noise / (2 * 2) + noise / (2 * samples)) / np.sqrt(2 / ((2 + samples) / 2))
        assert ratio == pytest.approx(expected, rel=0.1)
    assert found.numbers["over_bound"][10**8] > 100


def test_a_minimum_moves_no_more_than_what_moves_most() -> None:
    assert statistical.unequal(np.random.default_rng(1), draws=500).margin >= 0
