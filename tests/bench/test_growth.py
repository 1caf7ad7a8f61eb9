"""The line through measured seconds, on numbers whose line is known."""

from __future__ import annotations

import pytest
from benchmarks.growth import CLIENTS, Point, fit


def test_a_line_is_found_exactly() -> None:
    line = fit(list(CLIENTS), [0.5 + 0.01 * m for m in CLIENTS])
    assert line.start == pytest.approx(0.5)
    assert line.slope == pytest.approx(0.01)
    assert line.worst == pytest.approx(0, abs=1e-9)
    assert line.exponent < 1  # what a round costs before any client


def test_the_exponent_tells_a_line_from_a_square() -> None:
    assert fit(list(CLIENTS), [0.002 * m for m in CLIENTS]).exponent == pytest.approx(1)
    square = fit(list(CLIENTS), [1e-6 * m**2 for m in CLIENTS])
    assert square.exponent == pytest.approx(2)
    assert square.worst > 0.5


def test_small_federations_count_as_much_as_large_ones() -> None:
    seconds = [0.01 * m for m in CLIENTS]
    seconds[0] *= 1.2
    assert fit(list(CLIENTS), seconds).slope == pytest.approx(0.01, rel=0.05)
    assert fit(list(CLIENTS), seconds).start > 0.01


def test_short_rounds_are_timed_more_often() -> None:
    assert Point(20).rounds == Point(2000, participation=0.01).rounds == 30
    assert Point(2000).rounds == 4
    assert Point(2000, memory=True).rounds == 1
