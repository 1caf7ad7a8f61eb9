"""Paired tests over seeds: against scipy, and by hand."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from fedfew.studies import significance
from fedfew.studies.significance import holm, least_p, paired, sign_flip_p


def test_by_hand() -> None:
    """Differences 1, 2, 3: mean 2, sample std 1, so t = 2√3; the interval is 2 ± t₀.₉₇₅(2)/√3, t₀.₉₇₅(2) = 4.302653."""
    test = paired([11, 12, 13], [10, 10, 10])
    assert (test.seeds, test.difference) == (3, 2)
    assert test.low == pytest.approx(2 - 4.302653 / math.sqrt(3), abs=1e-6)
    assert test.high == pytest.approx(2 + 4.302653 / math.sqrt(3), abs=1e-6)
    # of Student's t with 2 degrees of freedom: P(|T| > t) = 1 − t / √(2 + t²)
    assert test.t_test == pytest.approx(1 - math.sqrt(12) / math.sqrt(14))
    assert test.sign_flips == 0.25  # of eight patterns + + + and − − − lie as far out


def test_which_comes_first_turns_the_sign_and_nothing_else() -> None:
    a, b = [0.61, 0.64, 0.6, 0.67], [0.58, 0.66, 0.57, 0.6]
    one, other = paired(a, b), paired(b, a)
    assert one.difference == pytest.approx(-other.difference)
    assert one.low == pytest.approx(-other.high)
    assert (one.t_test, one.sign_flips) == pytest.approx((other.t_test, other.sign_flips))


@pytest.mark.parametrize("seeds", [3, 4, 5, 8, 10])
def test_against_scipy(seeds: int) -> None:
    rng = np.random.default_rng(seeds)
    a, b = rng.normal(0.6, 0.1, seeds), rng.normal(0.55, 0.1, seeds)
    ours, theirs = paired(a.tolist(), b.tolist()), stats.ttest_rel(a, b)
    interval = theirs.confidence_interval(0.95)
    assert ours.t_test == pytest.approx(theirs.pvalue)
    assert (ours.low, ours.high) == pytest.approx((interval.low, interval.high))
    flips = stats.permutation_test((a, b), lambda x, y: (x - y).mean(), permutation_type="samples", n_resamples=np.inf)
    assert ours.sign_flips == pytest.approx(flips.pvalue)


def test_sign_flips_by_going_through_them() -> None:
    """1, 2, −4: |sum| = 1, and all but none of the eight patterns reach it; 5, 1, 1, 1 has sum 8, reached twice of 16."""
    assert sign_flip_p([1, 2, -4]) == sum(abs(a + 2 * b - 4 * c) >= 1 for a, b, c in product((1, -1), repeat=3)) / 8 == 1
    assert sign_flip_p([5, 1, 1, 1]) == 2 / 16
    assert sign_flip_p([0, 0, 0]) == 1
    assert sign_flip_p([0.1, 0.2, 0.3]) == 0.25  # 0.1 + 0.2 + 0.3 is not 0.3 + 0.2 + 0.1 to the last digit


@pytest.mark.parametrize("seeds", [3, 5, 12])
def test_no_p_below_what_the_seeds_can_carry(seeds: int) -> None:
    assert sign_flip_p([1000.0 + i for i in range(seeds)]) == least_p(seeds) == 2 / 2**seeds


def test_more_seeds_are_drawn_and_come_close_to_what_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    d = np.random.default_rng(0).normal(0.4, 1, 12).tolist()
    exact = sign_flip_p(d)
    monkeypatch.setattr(significance, "EXACT_SEEDS", 11)
    assert sign_flip_p(d) == pytest.approx(exact, abs=0.02)
    assert sign_flip_p(d) != exact
    assert sign_flip_p(d) == sign_flip_p(d)
    assert sign_flip_p([1.0] * 40) == pytest.approx(1 / 20_001)  # never 0


def test_the_same_difference_on_every_seed_has_no_spread_to_judge_by() -> None:
    test = paired([2, 3, 4], [1, 2, 3])
    assert (test.difference, test.low, test.t_test, test.sign_flips) == (1, None, None, 0.25)
    assert paired([1, 2, 3], [1, 2, 3]).t_test == 1


def test_holm_by_hand() -> None:
    """Sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1: 0.04, 0.06, 0.06 and 0.04, which may not be below the one before."""
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.5, None, 0.9]) == [1.0, None, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_a_number_has_no_p(value: float) -> None:
    with pytest.raises(ValueError, match="a and b must hold finite numbers"):
        paired([1.0, 2.0, value], [0.0, 1.0, 2.0])


def test_too_few_or_other_seeds_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 3 seeds, not 2"):
        paired([1, 2], [1, 2])
    with pytest.raises(ValueError, match="3 and 2"):
        paired([1, 2, 3], [1, 2])
