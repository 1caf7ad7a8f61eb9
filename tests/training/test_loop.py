"""The round loop: scores and choices, chunks, participation, clients left out, divergence, progress."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedfew
from fedfew import FedAvg, FedFew, LocalOnly
from fedfew.stack import leaves
from tests.helpers import difference, same_history
from tests.training.small import FEDERATION, spiked, train


def test_served_scores_are_those_of_the_models_returned():
    run = train(FedFew(models=2))
    for i in range(4):
        x, y = FEDERATION.test.of(i)
        xt, yt = FEDERATION.train.of(i)
        losses = [nn.functional.cross_entropy(m(xt), yt).item() for m in run.models]
        assert run.choice[i] == int(np.argmin(losses)) == fedfew.select(run.models, xt, yt)
        accuracy = (run.model_of(i)(x).argmax(1) == y).float().mean().item()
        assert run.history.served_accuracy[-1, i] == pytest.approx(accuracy)


def test_where_there_is_validation_data_it_chooses():
    train_part = FEDERATION.train
    other_labels = replace(train_part, y=(train_part.y + 1) % 3)
    run = train(FedFew(models=2), data=replace(FEDERATION, val=other_labels))
    by_validation = [fedfew.select(run.models, *other_labels.of(i)) for i in range(4)]
    assert run.choice.tolist() == by_validation
    assert by_validation != [fedfew.select(run.models, *train_part.of(i)) for i in range(4)]


def test_weights_in_the_history_are_those_of_the_losses_in_it():
    run = train(FedFew(models=2, mu=0.05, scale_free=False))
    share = FEDERATION.train.count / FEDERATION.train.count.sum()
    losses = torch.from_numpy(run.history.losses[-1]).double()
    alpha, w = fedfew.scalarization.weights(share[:, None].double() * losses, 0.05)
    assert np.allclose(run.history.alpha[-1], alpha, atol=1e-6)
    assert np.allclose(run.history.w[-1], w, atol=1e-6)
    g = fedfew.scalarization.stch_set(share[:, None].double() * losses, 0.05)
    assert run.history.g[-1] == pytest.approx(g.item(), rel=1e-5)


def test_weights_without_a_scale_are_those_of_counts_in_the_sum():
    """α_i ∝ p_i / S_i and g = μ log Σ_i p_i / S_i, with S_i = Σ_k exp(−L[i, k] / μ) and p_i = n_i / N."""
    mu = 0.3
    run = train(FedFew(models=2, mu=mu))
    p = (FEDERATION.train.count / FEDERATION.train.count.sum()).double().numpy()
    likelihood = np.exp(-run.history.losses[-1].astype(float) / mu)
    ratio = p / likelihood.sum(1)
    np.testing.assert_allclose(run.history.alpha[-1], ratio / ratio.sum(), atol=1e-6)
    np.testing.assert_allclose(run.history.w[-1], likelihood / likelihood.sum(1, keepdims=True), atol=1e-6)
    assert run.history.g[-1] == pytest.approx(mu * np.log(ratio.sum()), rel=1e-5)


def test_local_keeps_no_server_models_and_its_two_scores_are_one():
    run = train(LocalOnly())
    assert run.models == []
    assert np.array_equal(run.history.served_accuracy, run.history.adapted_accuracy)
    assert run.history.bytes_up.sum() == run.history.bytes_down.sum() == 0
    x, y = FEDERATION.test.of(2)
    assert run.history.served_accuracy[-1, 2] == pytest.approx((run.model_of(2)(x).argmax(1) == y).float().mean().item())


@pytest.mark.parametrize(("serve", "scores"), [("best", "chosen_scores"), ("mixture", "weighed_scores")])
@pytest.mark.parametrize(("options", "sets"), [({}, {2}), ({"chunk": 3}, {1}), ({"participation": 0.5}, {1})])
def test_models_served_and_adapted_are_scored_together_where_everyone_trains_at_once(options, sets, serve, scores, monkeypatch):
    found, real = set(), getattr(fedfew.engines.Stacked, scores)

    def counted(self, several, *rest):
        found.add(len(several))
        return real(self, several, *rest)

    monkeypatch.setattr(fedfew.engines.Stacked, scores, counted)
    train(FedFew(models=2), engine="stacked", serve=serve, **options)
    assert found == sets


@pytest.mark.parametrize("chunk", [1, 2, 3])
@pytest.mark.parametrize("method", [FedFew(models=2), FedAvg(), LocalOnly()])
def test_any_chunk_gives_the_same_result(method, chunk):
    whole, parts = train(method), train(method, chunk=chunk)
    assert difference(whole, parts) < 1e-6
    same_history(whole, parts, 1e-5)


def test_participation():
    run = train(FedAvg(), participation=0.5, rounds=6)
    present = ~np.isnan(run.history.losses[:, :, 0])
    assert (present.sum(1) == 2).all()
    assert present.any(0).all()
    assert not np.isnan(run.history.served_accuracy).any()
    assert (np.isnan(run.history.adapted_accuracy) == ~present).all()


def test_only_those_present_are_averaged():
    """FedAvg, one round, half of the clients: the mean of their own trained models by samples."""
    run = train(FedAvg(), participation=0.5, rounds=1)
    present = np.flatnonzero(~np.isnan(run.history.losses[0, :, 0])).tolist()
    alone = [train(LocalOnly(), data=FEDERATION.take([i]), rounds=1) for i in present]
    share = FEDERATION.train.count[present] / FEDERATION.train.count[present].sum()
    for name, mean in run.state.server.items():
        expected = sum(s * one.state.own[name][0] for s, one in zip(share, alone, strict=True))
        assert torch.allclose(mean[0], expected, atol=1e-6)


@pytest.mark.parametrize("engine", ["stacked", "sequential"])
@pytest.mark.parametrize("method", [FedFew(models=2), FedAvg(), LocalOnly()])
def test_a_client_with_non_finite_numbers_is_left_out(method, engine):
    told = []
    run = train(method, data=spiked(), engine=engine, on_round=lambda p: told.extend(p.events))
    assert run.round == 3
    assert run.history.left_out.tolist() == [1, 1, 1]
    assert np.isnan(run.history.losses[:, 1]).all()
    assert np.isfinite(run.history.losses[:, [0, 2, 3]]).all()
    assert all(t.isfinite().all() for t in leaves(run.state.server))
    assert told == run.state.events
    assert len(told) == 3
    assert "round 1: left out, their loss or update is not finite: clients 1" in told[0]


def test_a_client_left_out_counts_for_nothing():
    run = train(FedAvg(), data=spiked(), rounds=1)
    others = train(FedAvg(), data=FEDERATION.take([0, 2, 3]), rounds=1)
    assert difference(run, others) < 1e-6


def test_divergence_stops_with_advice_and_keeps_the_last_good_state(tmp_path):
    def explosive():
        return nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3))

    with pytest.raises(fedfew.DivergedError, match=r"Lower lr \(it is 1000; try 100\)") as caught:
        train(FedAvg(), model=explosive, lr=1000.0, rounds=50, folder=tmp_path / "run", checkpoint_every=50)
    run = caught.value.run
    assert 0 <= run.round < 50
    assert all(t.isfinite().all() for t in leaves(run.state.server))
    assert fedfew.load(tmp_path / "run", model=explosive).round == run.round


def test_progress_is_told():
    told = []
    train(rounds=4, score_every=2, on_round=told.append)
    assert [p.round for p in told] == [1, 2, 3, 4]
    assert [p.done for p in told] == [False, False, False, True]
    assert told[0].served is None
    assert 0 <= told[1].served <= 1
    assert all(math.isfinite(p.loss) and p.seconds > 0 for p in told)
