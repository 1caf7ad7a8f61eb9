"""FedBN: FedAvg with local BatchNorm layers."""

from __future__ import annotations

import torch
from torch import nn

from fedfew.methods import FedAvg, FedBN
from tests.methods.small import CLASSES, FEATURES, assert_same, federation, normalised, served, train

DATA = federation((7, 12, 6, 10, 16, 8))  # no batch of one


def test_it_is_fedavg_with_the_setting_batch_norm_local() -> None:
    a, b = train(FedBN(), DATA, model=normalised), train(FedAvg(), DATA, model=normalised, batch_norm="local")
    for one, other in zip(served(a), served(b), strict=True):
        assert_same(one, other)
    layer = 4 * 5 * 4 + 8  # scale, shift, mean and variance of 5 channels, and a count of batches
    assert train(FedAvg(), DATA, model=normalised).history.bytes_down[0] - a.history.bytes_down[0] == 4 * layer  # 4 took part


def test_batch_norm_layers_differ_and_all_else_is_the_same() -> None:
    run = train(FedBN(), DATA, model=normalised, participation=1.0)
    states = served(run)
    for name in states[0]:
        same = all(torch.equal(state[name], states[0][name]) for state in states)
        assert same == (not name.startswith("1.") or (name == "1.num_batches_tracked" and same))
    for i, scored in enumerate(run.history.last("served_loss")):  # of all clients at once, each with its own layers
        x, y = DATA.test.of(i)
        assert abs(float(nn.functional.cross_entropy(run.model_of(i)(x), y).detach()) - float(scored)) < 1e-5


def test_other_normalisation_travels() -> None:
    def layer_norm() -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 5), nn.LayerNorm(5), nn.Linear(5, CLASSES))

    a, b = train(FedBN(), model=layer_norm), train(FedAvg(), model=layer_norm)
    for one, other in zip(served(a), served(b), strict=True):
        assert_same(one, other)
    assert a.state.own == {}


def test_a_model_without_batch_norm_is_said_to_be_fedavg() -> None:
    said: list[str] = []
    train(FedBN(), rounds=1, on_round=lambda progress: said.extend(progress.events))
    assert said == ["fedbn: the model has no BatchNorm layer, so this is fedavg"]
    said.clear()
    train(FedBN(), DATA, model=normalised, adapters="lora", rounds=1, on_round=lambda progress: said.extend(progress.events))
    assert "fedbn: all BatchNorm layers of the model are frozen, so this is fedavg" in said
    said.clear()
    train(FedBN(), DATA, model=normalised, rounds=1, on_round=lambda progress: said.extend(progress.events))
    assert said == []
