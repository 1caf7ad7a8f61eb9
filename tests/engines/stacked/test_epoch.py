"""A whole epoch as one recording: the same parameters and losses as step by step."""

import pytest
import torch

import fedfew
from fedfew.config import LocalTraining
from fedfew.engines import Sequential, Stacked
from fedfew.engines.stacked import epoch, traced
from fedfew.local import LocalEpochs, cross_entropy
from tests.engines.small import FEDERATION, assert_same, replicas
from tests.helpers import federation, linear


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


def test_clients_share_a_recording_if_their_steps_have_the_same_shapes():
    """Of 6, 6 and 2 samples as many are trained on, in as many parts, as of 6, 4 and 4; of 6, 3 and 3 in the same shapes."""
    data = federation(sizes=(6, 4, 4, 6, 6, 2, 6, 3, 3))
    training = LocalTraining(lr=0.2, batch_size=2)
    one, other = (engine(linear(), training, 3) for engine in (Stacked, Sequential))
    for number in range(1, 3):
        for first in (0, 3, 6):
            clients = torch.arange(first, first + 3)
            work = LocalEpochs(replicas(linear, 3), data.train.take(clients), data.ids[clients], number, cross_entropy, {}, 1)
            (params, losses), (expected, reported) = (engine.train(work) for engine in (one, other))
            assert_same(params, expected)
            torch.testing.assert_close(losses, reported, rtol=1e-5, atol=1e-6)
    assert len(one._epochs._recordings._recordings) == 2


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
