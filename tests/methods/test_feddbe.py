"""FedDBE: its limits and its consensus. A float64 reference is in personal_references.py."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedfew.methods import FedDBE
from fedfew.stack import branch, leaves
from tests.methods.small import CLASSES, FEATURES, assert_same, federation, initial, served, tensors, train


@pytest.mark.parametrize("off", [{"kappa": 0.0}, {"mean_momentum": 0.0}])
def test_without_the_penalty_the_personal_bias_is_left(off: dict[str, float]) -> None:
    assert_same(tensors(train(FedDBE(kappa=0.0, mean_momentum=0.0))), tensors(train(FedDBE(**off))), 1e-6)


def test_served_is_the_global_model_with_the_bias_in_its_head() -> None:
    run = train(FedDBE(), participation=1.0)
    model = run.models[0].state_dict()
    x, _ = federation().test.of(2)
    features = torch.tanh(x @ model["0.weight"].T + model["0.bias"]) + run.state.own["2"][2]
    expected = features @ model["2.weight"].T + model["2.bias"]
    torch.testing.assert_close(run.model_of(2)(x).detach(), expected)
    assert len({float(state["2.bias"][0]) for state in served(run)}) == len(federation())


def test_the_consensus_is_the_mean_feature_under_the_initial_model_and_stays() -> None:
    data, start = federation(), initial()
    x = torch.cat([data.train.of(i)[0] for i in range(len(data))])  # all samples weigh alike: clients do by number of samples
    expected = torch.tanh(x @ start["0.weight"].T + start["0.bias"]).mean(0)
    for rounds in (1, 3):
        consensus = branch(train(FedDBE(), data, rounds=rounds, participation=1.0).state.server, "consensus")
        torch.testing.assert_close(consensus["mean"][0], expected)
        assert consensus["known"].tolist() == [1.0]


def test_the_servers_optimiser_leaves_the_consensus_alone() -> None:
    plain, moved = (
        branch(train(FedDBE(), rounds=1, participation=1.0, **settings).state.server, "consensus")
        for settings in ({}, {"server_optimizer": "momentum", "server_lr": 0.5})
    )
    assert torch.equal(plain["mean"], moved["mean"])


def test_a_strong_pull_brings_the_clients_mean_features_together() -> None:
    def apart(kappa: float) -> float:
        run = train(FedDBE(kappa=kappa, mean_momentum=1.0), rounds=4, participation=1.0)
        consensus, total = branch(run.state.server, "consensus")["mean"][0], 0.0
        model, data = run.models[0].state_dict(), federation()
        for i in range(len(data)):
            features = torch.tanh(data.train.of(i)[0] @ model["0.weight"].T + model["0.bias"]).mean(0)
            total += float((features - consensus).square().sum())
        return total

    assert apart(20.0) < 0.5 * apart(0.0)


def test_a_head_without_bias_is_refused() -> None:
    with pytest.raises(ValueError, match="head: '1' must be a linear layer with a bias"):
        train(FedDBE(), model=lambda: nn.Sequential(nn.Linear(FEATURES, 5), nn.Linear(5, CLASSES, bias=False)))


def test_a_client_that_never_took_part_does_not_stand_for_all() -> None:
    """Its bias is 0, so that it is served the server's model; others are not, and an export cannot predict for them."""
    runs = [train(FedDBE(), participation=0.4, rounds=1, seed=seed) for seed in range(4)]
    untouched = [not leaves(run.state.own)[0][0].any() for run in runs]
    assert any(untouched)
    assert not any(run.serves_server_models for run in runs)
