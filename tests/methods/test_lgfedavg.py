"""LG-FedAvg: what is shared. A float64 reference is in personal_references.py."""

from __future__ import annotations

import torch

from fedfew.methods import FedAvg, LGFedAvg
from tests.methods.small import CLASSES, assert_same, federation, served, train


def test_only_the_last_layer_travels() -> None:
    run = train(LGFedAvg(), rounds=1, participation=1.0)
    head, losses = 4 * (CLASSES * 5 + CLASSES), 4
    assert run.history.last("bytes_down") == len(federation()) * head
    assert run.history.last("bytes_up") == len(federation()) * (head + losses)
    assert run.models == []


def test_all_clients_have_the_same_last_layer_and_their_own_representation() -> None:
    states = served(train(LGFedAvg(), participation=1.0))
    assert all(torch.equal(state["2.weight"], states[0]["2.weight"]) for state in states)
    assert not torch.equal(states[0]["0.weight"], states[1]["0.weight"])


def test_with_all_layers_shared_it_is_fedavg() -> None:
    for one, other in zip(served(train(LGFedAvg(shared_layers=2))), served(train(FedAvg())), strict=True):
        assert_same(one, other)
