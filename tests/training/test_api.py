"""The round loop: what it returns, participation, chunks, clients left out, divergence, and errors."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedfew
from fedfew import FedAvg, FedFew, LocalOnly
from fedfew.stack import leaves
from tests.helpers import difference, federation, linear, same_history, same_run

FEDERATION = federation()
SHORT = {"rounds": 3, "batch_size": 8, "lr": 0.1, "engine": "stacked"}


def train(method="fedfew", data=FEDERATION, model=linear, **settings):
    return fedfew.train(data, model, method, **(SHORT | settings))


def test_what_a_run_holds():
    run = train(FedFew(models=2), rounds=5, score_every=2)
    history = run.history
    assert history.round.tolist() == [2, 4, 5]
    for name in ("served_accuracy", "served_loss", "adapted_accuracy", "adapted_loss", "choice", "alpha"):
        assert history[name].shape == (3, 4), name
    for name in ("losses", "w"):
        assert history[name].shape == (3, 4, 2), name
    for name in ("g", "seconds", "bytes_up", "bytes_down", "left_out"):
        assert history[name].shape == (3,), name
    parameters = 5 * 3 + 3
    assert history.bytes_down[-1] == 4 * 2 * parameters * 4  # 4 clients × 2 models × float32
    assert history.bytes_up[-1] == 4 * (2 * parameters + 2) * 4  # and two losses each
    assert len(run.models) == 2
    assert run.choice.shape == (4,)
    assert "round 5 of 5" in repr(run)


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
    run = train(FedFew(models=2, mu=0.05))
    share = FEDERATION.train.count / FEDERATION.train.count.sum()
    losses = torch.from_numpy(run.history.losses[-1]).double()
    alpha, w = fedfew.scalarization.weights(share[:, None].double() * losses, 0.05)
    assert np.allclose(run.history.alpha[-1], alpha, atol=1e-6)
    assert np.allclose(run.history.w[-1], w, atol=1e-6)
    g = fedfew.scalarization.stch_set(share[:, None].double() * losses, 0.05)
    assert run.history.g[-1] == pytest.approx(g.item(), rel=1e-5)


def test_learning_helps():
    run = train(FedAvg(), data=fedfew.data.digits(clients=5, partition="iid"), model="mlp", rounds=15)
    assert run.history.served_accuracy[-1].mean() > 0.85 > 0.7 > run.history.served_accuracy[0].mean()


def test_local_keeps_no_server_models_and_its_two_scores_are_one():
    run = train(LocalOnly())
    assert run.models == []
    assert np.array_equal(run.history.served_accuracy, run.history.adapted_accuracy)
    assert run.history.bytes_up.sum() == run.history.bytes_down.sum() == 0
    x, y = FEDERATION.test.of(2)
    assert run.history.served_accuracy[-1, 2] == pytest.approx((run.model_of(2)(x).argmax(1) == y).float().mean().item())


def test_the_seed_decides_everything():
    same_run(train(seed=4), train(seed=4))
    assert difference(train(seed=4), train(seed=5)) > 0.01
    same_run(train(model="linear", seed=1), train(model="linear", seed=1))


@pytest.mark.parametrize("chunk", [1, 2, 3])
@pytest.mark.parametrize("method", [FedFew(models=2), FedAvg(), LocalOnly()])
def test_any_chunk_gives_the_same_result(method, chunk):
    whole, parts = train(method), train(method, chunk=chunk)
    assert difference(whole, parts) < 1e-6
    same_history(whole, parts, 1e-5)


def test_chunks_are_chosen_to_fit(monkeypatch):
    assert train().settings["chunk"] == 4
    monkeypatch.setattr("fedfew.engines.memory.ON_A_CPU", 1)
    assert train().settings["chunk"] == 1


def test_a_full_gpu_is_answered_with_what_to_change(monkeypatch):
    def full(self):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 11 GiB. GPU 0 has …")

    monkeypatch.setattr("fedfew.training.api.RoundLoop.run", full)
    words = r"full with 4 clients at once, 2 models each: .*\(--chunk 2\).* PyTorch says: CUDA out of memory$"
    with pytest.raises(MemoryError, match=words):
        train(FedFew(models=2))


def test_features_that_stay_in_host_memory_train_the_same(monkeypatch):
    kept = []
    original = fedfew.Federation.to
    monkeypatch.setattr("fedfew.training.api.too_large", lambda *_: True)
    monkeypatch.setattr(fedfew.Federation, "to", lambda self, *a, **k: kept.append(k) or original(self, *a, **k))
    same_run(train(seed=3), train(seed=3))
    assert kept == [{"stream": True}] * 2
    streamed = FEDERATION.to("meta", stream=True)  # a device that holds no numbers: what stayed behind still has them
    assert torch.equal(streamed.train.x, FEDERATION.train.x)
    assert streamed.train.y.is_meta


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


def spiked(client=1, size=1e30):
    """A federation in which one client's features are absurdly large."""
    clients = [FEDERATION.train.of(i) for i in range(4)]
    clients[client] = (clients[client][0] * size, clients[client][1])
    return fedfew.Federation.from_arrays(clients, [FEDERATION.test.of(i) for i in range(4)], classes=3)


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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, "rounds must be ≥ 1, not 0"),
        ({"local_epochs": 0}, "local_epochs must be"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"lr": -1}, "lr must be"),
        ({"lr": float("nan")}, "lr must be"),
        ({"momentum": 1.0}, "momentum must be"),
        ({"weight_decay": -0.1}, "weight_decay must be"),
        ({"participation": 0}, "participation must be"),
        ({"score_every": 0}, "score_every must be"),
        ({"checkpoint_every": 0}, "checkpoint_every must be"),
        ({"chunk": 0}, "chunk must be"),
        ({"engine": "fast"}, "engine must be"),
        ({"device": "gpu"}, "device must be"),
        ({"method": "fedfw"}, "did you mean 'fedfew'"),
        ({"model": "mpl"}, "did you mean 'mlp'"),
        ({"method": FedFew(models=5)}, r"models must be at most the number of clients \(4\), not 5"),
        ({"method": FedFew(models=2, preference=(1.0,))}, "preference must be one number for each of 4 clients"),
        ({"resume": True}, "resume needs folder"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        train(**settings)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_no_gpu():
    with pytest.raises(ValueError, match="no CUDA GPU"):
        train(device="cuda")


def test_select():
    def constant(logits):
        module = nn.Linear(2, 3)
        with torch.no_grad():
            module.weight.zero_()
            module.bias.copy_(torch.tensor(logits))
        return module

    models = [constant([5.0, 0.0, 0.0]), constant([0.0, 5.0, 0.0])]
    assert fedfew.select(models, np.zeros((4, 2)), np.array([1, 1, 1, 0])) == 1
    assert fedfew.select(models, torch.zeros(4, 2), [0, 0, 1, 0]) == 0
    with pytest.raises(ValueError, match="models is empty"):
        fedfew.select([], np.zeros((1, 2)), [0])
    with pytest.raises(ValueError, match="same number"):
        fedfew.select(models, np.zeros((2, 2)), [0])


def test_the_history_explains_itself():
    history = train("fedavg").history
    assert len(history) == 3
    with pytest.raises(AttributeError, match="no column 'alpha'"):
        history.alpha  # noqa: B018  # the access is the test
    with pytest.raises(KeyError, match="no column 'alpha'"):
        history["alpha"]
    with pytest.raises(ValueError, match="do not fit"):
        history.append(round=9)
