"""Dropout from a counter: the same masks in every engine."""

import pytest
import torch
from torch import nn

from fedfew.engines.dropout import CountedDropout, keyed, make_counted
from tests.engines.small import ENGINES, assert_same, mlp, run


def test_dropout_is_counted():
    module = make_counted(mlp())
    dropout = module[3]
    assert isinstance(dropout, CountedDropout)
    assert list(module.state_dict()) == list(mlp().state_dict())
    assert isinstance(make_counted(nn.Dropout(0.1)), CountedDropout)
    *others, one = (run(cls, mlp) for cls in ENGINES)
    for other in others:
        assert_same(one[0], other[0])


def test_dropout_drops_its_share_and_keeps_the_mean():
    x = torch.ones(200, 500)
    layer = CountedDropout(0.3, layer=1).train()
    with keyed(torch.tensor(5)):
        y = layer(x)
        again = layer(x)
    with keyed(torch.tensor(6)):
        other = layer(x)
    assert torch.equal(y, again)
    assert not torch.equal(y, other)
    assert (y == 0).float().mean().item() == pytest.approx(0.3, abs=0.01)
    assert y.mean().item() == pytest.approx(1, abs=0.01)
    assert torch.equal(layer.eval()(x), x)


@pytest.mark.parametrize("p", [0.25, 0.8])
def test_units_are_dropped_one_by_one(p):
    """Four of them share a hash: each must drop its share, and none with its neighbours."""
    with keyed(torch.tensor(7)):
        y = CountedDropout(p, layer=2).train()(torch.ones(200_001))
    assert y.unique().tolist() == [0.0, pytest.approx(1 / (1 - p), rel=1e-4)]
    dropped = (y[:200_000] == 0).double().reshape(-1, 4)
    assert dropped.mean(0).tolist() == pytest.approx([p] * 4, abs=0.01)
    together = (dropped.T @ dropped) / len(dropped)
    assert (together - torch.eye(4) * (p - p**2) - p**2).abs().max() < 0.01


@pytest.mark.parametrize("p", [0.999999, 1.0])
def test_nothing_is_left_where_nearly_all_is_dropped(p):
    with keyed(torch.tensor(5)):
        assert not CountedDropout(p, layer=1).train()(torch.ones(10)).any()
