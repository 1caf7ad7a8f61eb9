"""FedALA: its limits. A float64 reference is in personal_references.py."""

from __future__ import annotations

import pytest
import torch

from fedfew.methods import FedALA, FedAvg
from fedfew.stack import branch, leaves
from tests.methods.small import assert_same, normalised, served, train


@pytest.mark.slow
def test_without_epochs_on_the_weights_it_is_fedavg() -> None:
    for one, other in zip(served(train(FedALA(ala_epochs=0))), served(train(FedAvg())), strict=True):
        assert_same(one, other)


def test_weights_stay_between_the_models() -> None:
    kept = branch(train(FedALA(eta=1000.0)).state.own, "kept")
    assert all(float(t.min()) >= 0 and float(t.max()) == 1 for t in leaves(kept))


def test_only_the_chosen_layers_are_mixed() -> None:
    run = train(FedALA(layers=1), participation=1.0)
    for state in served(run):
        assert torch.equal(state["0.weight"], run.models[0].state_dict()["0.weight"])
        assert not torch.equal(state["2.weight"], run.models[0].state_dict()["2.weight"])
    assert branch(train(FedALA()).state.own, "last").keys() == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_buffers_are_the_servers() -> None:
    run = train(FedALA(), model=normalised, batch_size=9, participation=1.0)
    assert branch(run.state.own, "last").keys() == {"0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"}
    assert torch.equal(served(run)[0]["1.running_mean"], run.models[0].state_dict()["1.running_mean"])
