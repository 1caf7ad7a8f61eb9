"""A whole epoch as one recording: the same parameters and losses as step by step."""

import pytest
import torch

import fedfew
from fedfew.config import LocalTraining
from fedfew.engines import Sequential, Stacked
from fedfew.engines.stacked import epoch, traced
from fedfew.local import LocalEpochs, cross_entropy
from tests.engines.small import FEDERATION, assert_same, replicas
from tests.helpers import linear


def rounds(engine, clients):
    """Three rounds, each from where the last one ended: step by step, recorded, replayed."""
    params, losses, samples = replicas(linear, len(clients)), [], FEDERATION.train.take(clients)
    for number in range(1, 4):
        params, loss = engine.train(LocalEpochs(params, samples, FEDERATION.ids[clients], number, cross_entropy, {}, 1))
        losses.append(loss)
    return params, torch.stack(losses)


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize("clients", [[0, 1, 2, 3], [2, 0, 1]], ids=["all", "some"])
def test_replayed_epochs_train_as_one_replica_after_the_other_does(clients, schedule):
    training = LocalTraining(lr=0.2, batch_size=8, schedule=schedule, rounds=4)
    one, other = Stacked(linear(), training, 3), Sequential(linear(), training, 3)
    (params, losses), (expected, reported) = (rounds(engine, torch.tensor(clients)) for engine in (one, other))
    assert len(one._epochs._recordings._recordings) == 1
    assert_same(params, expected)
    torch.testing.assert_close(losses, reported, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("changes", [{"momentum": 0.9}, {"mixup": 0.2}, {"optimizer": "adam"}], ids=str)
def test_epochs_that_need_more_than_an_order_go_step_by_step(changes):
    engine = Stacked(linear(), LocalTraining(lr=0.2, batch_size=8, **changes), 3)
    rounds(engine, torch.arange(4))
    assert not engine._epochs._recordings._recordings


def test_long_epochs_go_step_by_step(monkeypatch):
    monkeypatch.setattr(epoch, "MOST_STEPS", 1)
    engine = Stacked(linear(), LocalTraining(lr=0.2, batch_size=8), 3)
    rounds(engine, torch.arange(4))
    assert not engine._epochs._recordings._recordings


@pytest.mark.parametrize("recipe", ["plain", "strong"])
def test_no_replay_of_a_plain_run_is_left_to_python(recipe, monkeypatch):
    """Its epochs and its scores, with the best model or a mixture served, are programs of the interpreter."""
    programs, scripted = [], traced.scripted
    monkeypatch.setattr(traced, "scripted", lambda *of: programs.append(scripted(*of)) or programs[-1])
    fedfew.train(
        FEDERATION, linear, fedfew.FedFew(models=2), rounds=3, batch_size=8, engine="stacked", recipe=recipe, device="cpu"
    )
    assert len(programs) >= 3
    assert None not in programs
