"""The least quadratic form over the simplex, against trying all supports and against single cases by hand."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfew.util.simplex import least_quadratic_form
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
