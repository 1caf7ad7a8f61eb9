"""The weighted mean that is added up in parts."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedfew.weighted_mean import WeightedMean


def mean_of(log_weights, x, chunk):
    mean = WeightedMean(log_weights.shape[1])
    for start in range(0, len(x), chunk):
        mean.add(log_weights[start : start + chunk], {"x": x[start : start + chunk]})
    return mean


@given(
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(1, 9),
    st.sampled_from([1.0, 50.0, 1e4, 1e12]),
    st.integers(0, 99),
    st.booleans(),
)
def test_weighted_mean_in_parts_is_the_weighted_mean(clients, models, chunk, spread, seed, shared):
    generator = torch.Generator().manual_seed(seed)
    log_weights = torch.randn(clients, models, generator=generator, dtype=torch.float64) * spread
    x = torch.randn(clients, 1 if shared else models, 3, generator=generator, dtype=torch.float64)
    expected = (torch.softmax(log_weights, 0)[..., None] * x).sum(0)
    mean = mean_of(log_weights, x, chunk)
    assert torch.allclose(mean.mean()["x"], expected, rtol=1e-9, atol=1e-12)
    assert torch.allclose(mean.log_total, torch.logsumexp(log_weights, 0), rtol=1e-12)


@given(st.integers(2, 9), st.integers(1, 4), st.integers(0, 9), st.sampled_from([1.0, 50.0, 1e4]), st.integers(0, 99))
def test_sums_of_two_halves_merge_into_the_whole(clients, models, cut, spread, seed):
    """Also where one half is empty, and where a model has weight in one half only."""
    generator = torch.Generator().manual_seed(seed)
    log_weights = torch.randn(clients, models, generator=generator, dtype=torch.float64) * spread
    log_weights[: clients // 2, 0] = -torch.inf
    x = torch.randn(clients, models, 3, generator=generator, dtype=torch.float64)
    whole, merged = mean_of(log_weights, x, clients), WeightedMean(models)
    for half in (slice(None, cut), slice(cut, None)):
        merged.merge(mean_of(log_weights[half], x[half], clients).parts())
    assert torch.allclose(merged.mean()["x"], whole.mean()["x"], rtol=1e-9, atol=1e-12)
    assert torch.allclose(merged.log_total, whole.log_total, rtol=1e-12)
    assert WeightedMean(models).parts() == {}


@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_models_that_nobody_weighs_get_zero(chunk):
    log_weights = torch.tensor([[0.0, -math.inf], [0.0, -math.inf], [-math.inf, -math.inf]])
    x = torch.tensor([[[2.0], [9.0]], [[4.0], [9.0]], [[100.0], [9.0]]])
    mean = mean_of(log_weights, x, chunk)
    assert mean.mean()["x"].tolist() == [[3.0], [0.0]]
    assert mean.log_total[1] == -math.inf
