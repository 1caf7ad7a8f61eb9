"""Fixed-point numbers: sums are exact but for a bound that is stated, and never wrap around."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfew.flower.secure.fixed_point import MAX_LEVELS, FixedPoint

clips = st.floats(1e-9, 1e9)


@settings(deadline=None)
@given(clip=clips, clients=st.integers(1, 2**31 - 1), data=st.data())
def test_a_sum_is_off_by_no_more_than_the_bound(clip: float, clients: int, data: st.DataObject) -> None:
    ring = FixedPoint(clip, clients)
    numbers = data.draw(st.lists(st.floats(-clip, clip), min_size=1, max_size=min(clients, 12)))
    total = np.zeros(1, np.uint64)
    for number in numbers:
        total += ring.encode(np.array([number]))
    off = abs(Fraction(float(ring.decode(total)[0])) - sum(map(Fraction, numbers)))
    assert off <= Fraction(ring.error) * len(numbers) / clients


@settings(deadline=None)
@given(clip=clips, clients=st.integers(1, 2**31 - 1), sign=st.sampled_from([-1, 1]))
def test_all_clients_at_the_limit_do_not_overflow(clip: float, clients: int, sign: int) -> None:
    ring = FixedPoint(clip, clients)
    one = int(ring.encode(np.array([sign * clip])).view(np.int64)[0])
    assert abs(one) == ring.levels
    assert abs(one) * clients < 2**63
    total = np.array([one * clients % 2**64], dtype=np.uint64)
    assert ring.decode(total)[0] == pytest.approx(sign * clip * clients, rel=1e-12)


def test_the_step_is_the_finest_that_the_clients_allow() -> None:
    assert FixedPoint(1.0, 2**15 - 1).levels == MAX_LEVELS == 2**48
    assert FixedPoint(1.0, 2**16).levels == 2**47 - 1  # floor((2⁶³ − 1) / 2¹⁶)
    assert FixedPoint(2.0, 4).step == 2.0 / 2**48
    assert FixedPoint(2.0, 4).error == 0.625 * 4 * 2.0 / 2**48


def test_what_is_too_large_is_cut_and_counted() -> None:
    ring = FixedPoint(2.0, 5)
    values = np.array([-3.0, 2.5, 2.0, 1.0])
    np.testing.assert_allclose(ring.decode(ring.encode(values)), [-2.0, 2.0, 2.0, 1.0], rtol=1e-12)
    assert ring.clipped(values) == 2


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        FixedPoint(1.0, 3).encode(np.array([0.0, bad]))


@pytest.mark.parametrize(
    ("clip", "clients", "words"), [(0.0, 3, "clip must be"), (np.inf, 3, "clip must be"), (1.0, 0, "clients")]
)
def test_senseless_settings_are_refused(clip: float, clients: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        FixedPoint(clip, clients)
