"""The coverage bound and what samples cost."""

from __future__ import annotations

import numpy as np
import pytest

from fedfew.studies.theory import coverage, statistical
from fedfew.studies.theory.quadratic import alike, simplex


def test_the_bound_is_attained_by_losses_of_0_or_1() -> None:
    assert coverage.discrete(4) == pytest.approx(0.0, abs=1e-12)


def test_the_least_maximum_does_not_bound_the_average() -> None:
    check = coverage.tchebycheff(5)
    assert check.holds
    assert check.numbers["average"] == pytest.approx(0.25)
    assert check.numbers["bound"] == pytest.approx(0.2)
    assert coverage.tchebycheff(4).violations == 0  # ¼ = 1 − 3/4: just within


def test_bound_on_few_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "worlds", lambda rng: [simplex(3), alike(np.array([[0.0], [1.0], [5.0]]))])
    printed, sharper, fedfew = coverage.bound(np.random.default_rng(0))
    assert printed.holds
    assert printed.cases == 6
    assert printed.numbers["largest_share_of_bound"] == pytest.approx(0.5)  # the simplex: half of it
    assert sharper.holds
    assert sharper.margin <= printed.margin
    assert fedfew.holds
    assert fedfew.violations >= 2  # K = M, where the bound is 0


def test_empirical_losses_are_those_of_the_samples() -> None:
    """Against numpy's least squares on the same draws."""
    world = statistical.Sampled(alike(np.array([[1.0, -2.0]])))
    drawn = world.draw(np.random.default_rng(5), 50)
    rng = np.random.default_rng(5)
    x, noise = rng.normal(size=(1, 50, 2))[0], statistical.NOISE * rng.normal(size=(1, 50))[0]
    expected, *_ = np.linalg.lstsq(x, x @ np.array([1.0, -2.0]) + noise, rcond=None)
    assert drawn.optimum[0] == pytest.approx(expected)
    assert drawn.curvature[0] == pytest.approx(x.T @ x / 50)


def test_excess_of_one_client_is_known() -> None:
    """One client alone: E ½‖θ̂ − θ*‖² = σ² d / (2 (n − d − 1)) for Gaussian features."""
    world = statistical.Sampled(alike(np.zeros((1, 3))))
    found = statistical.excess(world, np.random.default_rng(0), samples=60, draws=800)
    assert found[0] == pytest.approx(statistical.NOISE**2 * 3 / (2 * 56), rel=0.1)


def test_slope_of_a_power_law() -> None:
    x = np.array([1.0, 2.0, 4.0])
    assert statistical.slope(x, 5 * x**-1.5) == pytest.approx(-1.5)


def test_with_two_best_sets_the_absolute_difference_stays() -> None:
    check = statistical.two_optima(np.random.default_rng(2))
    assert check.holds
    assert check.numbers["absolute"][1_000_000] == pytest.approx(1 / 24, abs=0.02)  # 1/12, half of the time
    assert check.numbers["signed"][1_000_000] < 1e-6
