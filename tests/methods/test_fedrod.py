"""FedRoD: its limits, classes that are missing, and which heads it takes. A float64 reference is in personal_references.py."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fedfew
from fedfew.methods import FedAvg, FedRoD
from fedfew.models.split import linear_head
from tests.methods.small import CLASSES, FEATURES, assert_same, federation, mlp, served, train


def test_without_balancing_the_generic_model_is_fedavgs() -> None:
    rod, avg = train(FedRoD(gamma=0.0)), train(FedAvg())
    generic = dict(rod.models[0].state_dict())
    assert_same(generic, dict(avg.models[0].state_dict()), 1e-6)
    assert not torch.allclose(served(rod)[0]["2.weight"], generic["2.weight"])


def test_served_is_the_generic_model_with_the_personal_head_added() -> None:
    run = train(FedRoD(), participation=1.0)
    generic = dict(run.models[0].state_dict())
    for i, state in enumerate(served(run)):
        assert torch.equal(state["0.weight"], generic["0.weight"])
        assert torch.equal(state["2.bias"], generic["2.bias"] + run.state.own["2.bias"][i])


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_clients_without_some_classes_stay_finite(engine: str) -> None:
    whole = federation()
    parts = [whole.train.of(i) for i in range(len(whole))]
    one_class = [(x, torch.full_like(y, i % CLASSES)) for i, (x, y) in enumerate(parts)]
    data = fedfew.Federation.from_arrays(one_class, one_class, classes=CLASSES)
    run = train(FedRoD(), data, engine=engine, rounds=6, label_smoothing=0.1)
    assert all(t.isfinite().all() for state in served(run) for t in state.values())
    assert run.history.last("served_accuracy").min() == 1.0


def test_the_balanced_loss_moves_absent_classes_little() -> None:
    """With one class at each client, the generic head hardly moves: it cannot tell it from being the only one there is."""
    x, y = federation().train.of(0)
    data = fedfew.Federation.from_arrays([(x, torch.zeros_like(y))], [(x, y)], classes=CLASSES)
    settings = {"participation": 1.0, "momentum": 0.0, "rounds": 1}
    balanced, plain = (train(FedRoD(gamma=g), data, **settings).models[0].state_dict()["2.bias"] for g in (1.0, 0.0))
    start = train(FedRoD(), data, **(settings | {"lr": 1e-30})).models[0].state_dict()["2.bias"]
    assert (balanced - start).abs().max() < 1e-5 < 0.01 < (plain - start).abs().max()


def test_a_head_without_bias_and_one_that_is_no_linear_layer() -> None:
    def bare() -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES, bias=False))

    assert served(train(FedRoD(), model=bare, rounds=1))[0].keys() == {"0.weight", "0.bias", "2.weight"}
    with pytest.raises(ValueError, match="head: '1' must be a linear layer"):
        linear_head(nn.Sequential(nn.Linear(FEATURES, FEATURES), mlp()).state_dict(), "1")
    with pytest.raises(ValueError, match="head: '0' must be a linear layer"):
        linear_head(nn.Sequential(nn.Conv2d(1, 2, 3), mlp()).state_dict(), "0")
