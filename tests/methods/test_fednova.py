from __future__ import annotations

import torch

from fedfew.methods import FedAvg, FedNova
from tests.methods.small import (
    FULL_BATCH,
    PLAIN,
    assert_close,
    assert_same,
    federation,
    initial,
    linear,
    tensors,
    theta,
    train,
)


def test_where_all_take_as_many_steps_it_is_fedavg() -> None:
    for settings in (FULL_BATCH, {"momentum": 0.5}):
        data = federation((8,) * 6)
        assert_same(tensors_of_models(FedNova(), data, settings), tensors_of_models(FedAvg(), data, settings), 2e-6)


def tensors_of_models(method, data, settings):
    found = tensors(train(method, data, **settings))
    return {name: t for name, t in found.items() if "bytes" not in name}  # the number of steps travels, too


def test_a_client_with_more_steps_does_not_count_for_more() -> None:
    """Two clients of 4 and 12 samples in batches of 4: 1 and 3 steps; w + (¼·1 + ¾·3)·(¼·Δ₁/1 + ¾·Δ₂/3)."""
    data = federation((4, 12))
    settings = PLAIN | {"model": linear, "local_epochs": 1, "rounds": 1, "batch_size": 4}
    start = theta(initial(linear))
    alone = [theta(train(FedAvg(), data.take(torch.tensor([i])), **settings).models[0].state_dict()) - start for i in range(2)]
    found = theta(train(FedNova(), data, **settings).models[0].state_dict()) - start
    assert_close(found, 2.5 * (alone[0] / 4 + alone[1] / 4))
    fedavg = theta(train(FedAvg(), data, **settings).models[0].state_dict()) - start
    assert_close(fedavg, alone[0] / 4 + 3 * alone[1] / 4)


def test_momentum_counts_as_steps() -> None:
    """With ρ = 0.5, one and three steps are worth 1 and 1 + 1.5 + 1.75 = 4.25."""
    data = federation((4, 12))
    settings = PLAIN | {"model": linear, "local_epochs": 1, "rounds": 1, "batch_size": 4, "momentum": 0.5}
    start = theta(initial(linear))
    alone = [theta(train(FedAvg(), data.take(torch.tensor([i])), **settings).models[0].state_dict()) - start for i in range(2)]
    found = theta(train(FedNova(), data, **settings).models[0].state_dict()) - start
    assert_close(found, (0.25 + 0.75 * 4.25) * (0.25 * alone[0] + 0.75 * alone[1] / 4.25))
