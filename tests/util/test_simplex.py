"""The least quadratic form over the simplex, against trying all supports and against single cases by hand."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfew.util.simplex import least_quadratic_form, least_within
from tests.methods.optimisation_references import least_by_bounds
from tests.methods.personal_references import least_by_trial


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_it_is_the_least_of_all_supports(size: int, rank: int, seed: int) -> None:
    root = torch.randn(size, rank, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    form = root @ root.T + 1e-3 * torch.eye(size, dtype=torch.float64)
    alpha = least_quadratic_form(form)
    assert bool((alpha >= 0).all())
    torch.testing.assert_close(alpha, least_by_trial(form), rtol=1e-6, atol=1e-8)


def test_by_hand() -> None:
    """Of the identity: all alike. Of diag(1, 3): 1/V. A form that prefers one alone. And one that is 0."""
    torch.testing.assert_close(least_quadratic_form(torch.eye(4).double()), torch.full((4,), 0.25).double())
    torch.testing.assert_close(
        least_quadratic_form(torch.tensor([1.0, 3.0]).diag().double()), torch.tensor([0.75, 0.25]).double()
    )
    correlated = torch.tensor([[1.0, 2.0], [2.0, 5.0]]).double()  # mixing in the second only adds
    assert least_quadratic_form(correlated).tolist() == [1.0, 0.0]
    torch.testing.assert_close(least_quadratic_form(torch.zeros(3, 3).double()).sum(), torch.tensor(1.0).double())


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 5), st.integers(1, 6), st.floats(0.0, 1.0), st.integers(0, 2**32 - 1))
def test_within_bounds_it_is_the_least_of_all_ways_to_be_at_a_bound(size: int, rank: int, epsilon: float, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    root = torch.randn(size, rank, dtype=torch.float64, generator=draw)
    form = root @ root.T + 1e-3 * torch.eye(size, dtype=torch.float64)
    start = torch.rand(size, dtype=torch.float64, generator=draw).softmax(0)
    low, high = (start - epsilon).clamp_min(0), (start + epsilon).clamp_max(1)
    alpha = least_within(form, start, low, high)
    assert bool((alpha >= low - 1e-12).all())
    assert bool((alpha <= high + 1e-12).all())
    torch.testing.assert_close(alpha, least_by_bounds(form, low, high), rtol=1e-6, atol=1e-8)


def test_within_bounds_by_hand() -> None:
    """diag(1, 3) would have (0.75, 0.25): bounds of 0.1 around (0.5, 0.5) stop it at (0.6, 0.4). Bounds of 0: no move."""
    form, half = torch.tensor([1.0, 3.0]).diag().double(), torch.full((2,), 0.5).double()
    torch.testing.assert_close(least_within(form, half, half - 0.1, half + 0.1), torch.tensor([0.6, 0.4]).double())
    torch.testing.assert_close(least_within(form, half, half - 0.4, half + 0.4), torch.tensor([0.75, 0.25]).double())
    assert torch.equal(least_within(form, half, half, half), half)
    at_a_corner = torch.tensor([0.0, 1.0]).double()  # both begin at a bound, and must leave it together
    torch.testing.assert_close(
        least_within(form, at_a_corner, torch.zeros(2).double(), torch.ones(2).double()), torch.tensor([0.75, 0.25]).double()
    )
