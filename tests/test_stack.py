"""Trees of stacked tensors, and the weighted mean that is added up in parts."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedfew import stack
from fedfew.stack import WeightedMean

TREE = {"a": torch.arange(6.0).reshape(3, 2), "b": {"c": torch.ones(3)}}


def test_names_and_back():
    named = dict(stack.named_leaves(TREE))
    assert list(named) == ["a", "b/c"]
    assert stack.from_named(named).keys() == TREE.keys()
    assert torch.equal(stack.from_named(named)["b"]["c"], TREE["b"]["c"])


def test_take_put_stack():
    rows = [stack.take(TREE, i) for i in range(3)]
    assert torch.equal(stack.stack(rows)["a"], TREE["a"])
    target = stack.tree_map(torch.zeros_like, TREE)
    stack.put(target, torch.tensor([2, 0]), stack.take(TREE, torch.tensor([2, 0])))
    assert target["a"].tolist() == [[0, 1], [0, 0], [4, 5]]


def test_arithmetic():
    assert stack.squared_distance({"x": torch.tensor([1.0, 2.0])}, {"x": torch.tensor([4.0, 6.0])}).item() == 25
    moved = stack.add({"x": torch.ones(2, 3)}, {"x": torch.ones(2, 3)}, torch.tensor([0.0, 2.0]))
    assert moved["x"].tolist() == [[1, 1, 1], [3, 3, 3]]
    assert stack.finite({"x": torch.tensor([[1.0, 2.0], [1.0, math.nan]]), "y": torch.zeros(2)}).tolist() == [True, False]
    assert stack.count_bytes(TREE) == 36


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


def test_an_empty_branch_may_be_missing_in_the_other_trees():
    """As after a tree was sent, which leaves no trace of one."""
    tree = {"own": {}, "a": torch.ones(2)}
    moved = stack.tree_map(torch.add, tree, {"a": torch.ones(2)})
    assert moved["own"] == {}
    assert moved["a"].tolist() == [2.0, 2.0]
