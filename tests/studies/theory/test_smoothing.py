"""The smoothing bound, by hand and on random matrices."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedfew.studies.theory import smoothing
from fedfew.studies.theory.check import FAILS, HOLDS


def test_the_printed_sign_fails_by_hand() -> None:
    """One client, two equal models: STCH = L − μ log 2, below TCH = L, where the paper has it above."""
    case = smoothing.measured(torch.tensor([[3.0, 3.0]], dtype=torch.float64), 0.5)
    assert case.difference == pytest.approx(0.5 * math.log(2))
    assert case.breaks_printed
    assert case.margin == pytest.approx(0.0)


def test_the_other_sign_by_hand() -> None:
    """Two clients, one model: STCH = L + μ log 2."""
    case = smoothing.measured(torch.tensor([[3.0], [3.0]], dtype=torch.float64), 0.5)
    assert case.difference == pytest.approx(-0.5 * math.log(2))
    assert not case.breaks_printed


def test_both_ends_are_attained() -> None:
    low, high = smoothing.attained(7, 5, 0.1)
    assert low.scaled == pytest.approx(-math.log(7))
    assert high.scaled == pytest.approx(math.log(5))


def test_a_broken_bound_would_be_seen() -> None:
    assert smoothing.Case(clients=2, models=2, mu=1.0, size=1.0, difference=0.8).margin < 0  # log 2 = 0.69
    assert smoothing.Case(clients=2, models=2, mu=1.0, size=1.0, difference=-0.8).margin < 0


@pytest.mark.slow
def test_checks() -> None:
    found = smoothing.bound(np.random.default_rng(1))
    assert found.holds
    assert found.verdict == FAILS
    assert 100 < found.violations < found.cases
    limit = smoothing.limit(np.random.default_rng(1), matrices=5)
    assert limit.holds
    assert limit.verdict == HOLDS
    worst = limit.numbers["worst"]
    assert worst == sorted(worst)  # the smaller μ, the closer
