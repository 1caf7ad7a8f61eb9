"""FedPer: its limits and what travels. A float64 reference is in personal_references.py."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedfew.methods import FedAvg, FedPer
from fedfew.models.split import last_layers
from tests.methods.small import FEATURES, assert_same, federation, mlp, served, train


def test_without_personal_layers_it_is_fedavg() -> None:
    a, b = train(FedPer(personal_layers=0)), train(FedAvg())
    for one, other in zip(served(a), served(b), strict=True):
        assert_same(one, other)
    assert len(a.models) == 1


def test_only_the_base_layers_travel() -> None:
    run = train(FedPer(), rounds=1, participation=1.0)
    body, losses = 4 * (FEATURES * 5 + 5), 4
    assert run.history.last("bytes_down") == len(federation()) * body
    assert run.history.last("bytes_up") == len(federation()) * (body + losses)
    assert run.models == []


def test_all_clients_have_the_same_base_layers_and_their_own_last_ones() -> None:
    states = served(train(FedPer(), participation=1.0))
    assert all(torch.equal(state["0.weight"], states[0]["0.weight"]) for state in states)
    assert not torch.equal(states[0]["2.weight"], states[1]["2.weight"])


def test_last_layers() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    state = network.state_dict()
    assert last_layers(state, 0) == []
    assert last_layers(state, 1) == ["4.weight", "4.bias"]
    assert last_layers(state, 2) == ["2.weight", "2.bias", "3.weight", "3.bias", "4.weight", "4.bias"]
    assert last_layers(state, 3) == last_layers(state, 9) == list(state)
    assert last_layers(nn.LayerNorm(3).state_dict(), 1) == []


def test_a_model_that_would_be_all_personal_is_refused() -> None:
    with pytest.raises(ValueError, match="fedper: personal_layers must be less than the number of layers"):
        train(FedPer(personal_layers=2), model=mlp)
