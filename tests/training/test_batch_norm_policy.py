"""The three policies for BatchNorm layers, from train to load."""

from typing import get_args

import pytest
import torch
from torch import nn

import fedfew
from fedfew import stack
from fedfew.config import BatchNorm
from fedfew.engines import LocalTraining, Sequential
from fedfew.local import LocalEpochs, cross_entropy
from fedfew.methods import make
from fedfew.models.batch_norm import state_names
from fedfew.stack import leaves, named_leaves, tree_map
from fedfew.weighted_mean import WeightedMean
from tests.engines.small import Normalised, assert_close, images
from tests.helpers import difference, federation, linear, same_history, same_run

DATA = images()
NORM = state_names(Normalised())
METHODS = {
    "fedavg": make("fedavg"),
    "fedfew": make("fedfew", models=2, mu=0.1, scale_free=False),
    "ifca": make("ifca", models=2),
    "local": make("local"),
}

POLICIES = get_args(BatchNorm)


def train(method="fedavg", policy="average", model=Normalised, data=DATA, **changes):
    settings = {"rounds": 2, "batch_size": 5, "lr": 0.1, "engine": "sequential", "device": "cpu", "seed": 1}
    return fedfew.train(data, model, METHODS.get(method, method), batch_norm=policy, **(settings | changes))


def test_names_of_batch_norm():
    assert len(NORM) == 10
    assert {name.partition(".")[0] for name in NORM} == {"norm2d", "norm1d"}


def pairs(first, second):
    """All pairs; those that have neither the first of the one nor of the other are slow."""
    quick = {first[0], second[0]}
    return [pytest.param(a, b, marks=[] if quick & {a, b} else pytest.mark.slow) for a in first for b in second]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "policy"), pairs(["fedfew", "fedavg", "ifca", "local"], POLICIES))
def test_engines_and_chunks_agree(method, policy):
    oracle, other = train(method, policy), train(method, policy, engine="stacked", chunk=3)
    assert difference(oracle, other) < 1e-6
    same_history(oracle, other, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "policy"), pairs(["stacked", "sequential"], POLICIES))
def test_resumed_run_is_the_same_to_the_last_bit(policy, engine, tmp_path):
    settings = {"method": "fedfew", "policy": policy, "engine": engine, "participation": 0.75, "augment": "crop-flip"}
    whole = train(**settings, rounds=4)
    train(**settings, rounds=2, folder=tmp_path)
    same_run(whole, train(**settings, rounds=4, folder=tmp_path, resume=True))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_loaded_run_serves_the_same_models(policy, tmp_path):
    run = train("fedfew", policy, folder=tmp_path)
    again = fedfew.load(tmp_path, Normalised)
    x, y = DATA.test.of(1)
    logits = run.model_of(1)(x)
    assert torch.equal(again.model_of(1)(x), logits)
    loss = torch.nn.functional.cross_entropy(logits, y).item()
    assert loss == pytest.approx(float(run.history.last("served_loss")[1]), rel=1e-5)
    assert len(again.models) == len(run.models) == (0 if policy.startswith("local") else 2)
    with pytest.raises(ValueError, match="batch_norm"):
        train("fedfew", "average" if policy == "batch" else "batch", folder=tmp_path, resume=True)


def one_round_at_home(data=DATA):
    """Every client's model after a round of FedAvg's local training, and where it started."""
    start = train(rounds=1, lr=1e-30, data=data).models[0].state_dict()
    engine = Sequential(Normalised(), LocalTraining(lr=0.1, batch_size=5), seed=1)
    fresh = {name: torch.ones_like(t) if "running_var" in name else t * ("running" not in name) for name, t in start.items()}
    fresh |= {name: torch.zeros_like(t) for name, t in start.items() if "tracked" in name}
    params = tree_map(lambda t: t.expand(len(data), 1, *t.shape), fresh)
    return engine.train(LocalEpochs(params, data.train, data.ids, 1, cross_entropy, {}, 1))[0]


def test_average_is_the_mean_of_the_clients_statistics():
    server = train(rounds=1).state.server
    trained = one_round_at_home()
    share = DATA.train.count.double() / DATA.train.count.sum()
    for name in NORM:
        mean = torch.einsum("i,i...->...", share, trained[name][:, 0].double())
        if "tracked" in name:  # 3, 5, 2 and 6 batches, of which 4.7 is the mean
            assert (mean.item(), server[name].tolist()) == (pytest.approx(4.7, abs=0.05), [5])
        else:
            torch.testing.assert_close(server[name][0], mean)


def test_local_layers_stay_at_home():
    run, average = train(policy="local", rounds=1), train(rounds=1)
    trained = one_round_at_home()
    assert not set(NORM) & run.state.server.keys()
    assert set(NORM) == run.state.own["kept"].keys()
    for name in NORM:
        torch.testing.assert_close(run.state.own["kept"][name], trained[name])
    for name, t in run.state.server.items():  # all else is FedAvg
        assert torch.equal(t, average.state.server[name])
    size = sum(t.numel() * t.element_size() for name, t in Normalised().state_dict().items() if name in NORM)
    for column in ("bytes_up", "bytes_down"):
        assert int(average.history.last(column)) - int(run.history.last(column)) == 4 * size
    assert repr(run).startswith("<Run fedavg")
    assert (run.method.name, run.method.served) == ("fedavg", make("fedavg").served)


def test_local_layers_of_the_model_that_was_trained():
    """IFCA trains one of a client's two models: only that one's layers move."""
    run = train("ifca", "local", rounds=1)
    moved = run.state.own["kept"]["norm1d.num_batches_tracked"]
    losses = torch.from_numpy(run.history.last("losses"))
    assert (moved > 0).sum(1).tolist() == [1, 1, 1, 1]
    assert torch.equal(moved.argmax(1), losses.argmin(1))


def test_absent_clients_keep_their_layers():
    first, second = (train("fedfew", "local", rounds=r, participation=0.5) for r in (1, 2))
    present = ~torch.from_numpy(second.history.last("losses")).isnan().all(1)
    before, after = (run.state.own["kept"]["norm1d.running_mean"] for run in (first, second))
    moved = (before != after).flatten(1).any(1)
    assert torch.equal(moved, present)
    assert 0 < present.sum() < 4


def test_batch_keeps_no_statistics():
    run = train("fedavg", "batch")
    assert not any("running" in name or "tracked" in name for name in run.state.server)
    assert {"norm1d.weight", "norm2d.bias"} <= run.state.server.keys()


def test_policies_differ():
    losses = {policy: train("fedavg", policy).history.last("served_loss") for policy in POLICIES}
    assert abs(losses["average"] - losses["local"]).max() > 1e-3
    assert abs(losses["average"] - losses["batch"]).max() > 1e-3
    assert abs(losses["local"] - losses["batch"]).max() > 1e-3
    for policy in ("average", "local", "batch"):
        assert abs(losses["local-statistics"] - losses[policy]).max() > 1e-3


@pytest.mark.parametrize("method", ["fedamp", "fedmtl", make("fedfew", share="body")])
def test_local_is_for_methods_whose_clients_train_what_they_receive(method):
    name = method if isinstance(method, str) else method.name
    with pytest.raises(ValueError, match=rf"batch_norm is 'local'.*not for {name}"):
        train(method, "local")


STATISTICS = [name for name in NORM if "running" in name or "tracked" in name]


def test_local_statistics_stay_and_parameters_travel():
    run = train(policy="local-statistics", rounds=1)
    trained = one_round_at_home()
    share = DATA.train.count.double() / DATA.train.count.sum()
    assert len(STATISTICS) == 6
    assert set(STATISTICS) == run.state.own["kept"].keys()
    assert run.state.server.keys() == trained.keys() - set(STATISTICS)
    for name, t in run.state.server.items():
        torch.testing.assert_close(t[0], torch.einsum("i,i...->...", share, trained[name][:, 0].double()))
    for client in range(4):
        used = run.model_of(client).state_dict()
        for name in STATISTICS:
            torch.testing.assert_close(used[name], trained[name][client, 0])


@pytest.mark.parametrize("method", ["ditto", "apfl", "fedrep", "fedamp", "fedmtl", *METHODS.values()])
def test_under_local_statistics_no_statistic_reaches_the_server_or_another_client(method):
    """Features of client 0 are shifted far away: nobody else's statistics may notice after a round."""
    far = images()
    far.train.x[far.train.rows(0)] += 1e4
    far.test.x[far.test.rows(0)] += 1e4
    run = train(method, "local-statistics", data=far, rounds=2, lr=1e-6)
    for client in range(4):
        mean = float(run.model_of(client).state_dict()["norm2d.running_mean"].abs().max())
        assert (mean > 100) == (client == 0), (client, mean)
    again = train(method, "local-statistics", data=far, rounds=2, lr=1e-6, engine="stacked", chunk=3)
    assert difference(run, again) < 1e-5


def test_ditto_keeps_the_statistics_of_its_global_copy_too():
    """After a round: those of a copy trained as in FedAvg, and of the personal model by itself."""
    run, trained = train("ditto", "local-statistics", rounds=1), one_round_at_home()
    for name in STATISTICS:
        torch.testing.assert_close(run.state.own["kept"][name], trained[name])
        assert run.state.own["own"][name].shape == trained[name][:, 0].shape


@pytest.mark.parametrize("method", ["ditto", "apfl", "fedamp", "fedmtl", "fedrep", make("fedfew", share="body", models=2)])
def test_other_methods_train_alike_in_both_engines(method):
    assert difference(train(method, rounds=1), train(method, rounds=1, engine="stacked")) < 1e-6


def test_where_everything_is_local_anyway_local_changes_nothing():
    same_run(train("local", "local"), train("local", "average"))


def test_what_cannot_be():
    with pytest.raises(ValueError, match="batch_norm must be average, local, local-statistics or batch, not 'none'"):
        train(policy="none")
    for policy in ("local", "local-statistics", "batch"):
        with pytest.raises(ValueError, match=f"batch_norm is '{policy}', but the model has no BatchNorm"):
            train(policy=policy, model=linear, data=federation())
    by_gradient = make("fedfew", models=2, send="gradient", server_step=0.1)
    with pytest.raises(ValueError, match=r"send is 'gradient'.*running statistics.*batch_norm"):
        train(by_gradient)
    train(by_gradient, "local", rounds=1)


@pytest.mark.parametrize("part", [{"adapters": "lora"}, {"freeze": "body"}])
def test_a_policy_for_frozen_layers_is_refused_as_such(part):
    def model():
        return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))

    with pytest.raises(ValueError, match="batch_norm is 'local', but the model has frozen BatchNorm layers alone"):
        fedfew.train(federation(features=4, classes=2), model, "fedavg", batch_norm="local", **part)


def test_a_batch_of_one_is_refused_before_it_happens():
    data = images((13, 22, 7, 26))
    with pytest.raises(ValueError, match=r"batch_size is 5 \(try 8\).* client 3, who has 26 training samples") as error:
        train(data=data)
    assert "BatchNorm needs two" in str(error.value)
    train(data=data, batch_size=8, rounds=1)
    with pytest.raises(ValueError, match=r"batch_size is 1 .*client 0"):
        train(batch_size=1)


@pytest.mark.parametrize("engine", ["stacked", "sequential"])
def test_one_image_is_enough_where_no_layer_sees_a_single_value(engine):
    def on_images():
        return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 3))

    run = train(model=on_images, data=images((11, 6)), engine=engine, rounds=1)
    assert all(bool(t.isfinite().all()) for t in leaves(run.state.server))


def test_one_test_sample_has_no_statistics():
    data = images(test=1)
    with pytest.raises(ValueError, match="batch_norm is 'batch', but client 0 has a single test sample"):
        train(policy="batch", data=data)
    train(policy="average", data=data, rounds=1)
    with pytest.raises(ValueError, match="client 0 keeps a single training sample apart"):
        train("fedfew", policy="batch", check_share=0.05, batch_size=100)


def test_whole_numbers_are_averaged_and_stay_whole():
    """Weights 1 and 3 of 2 and 7: 5.75. A step of a half from 10: 12.875."""
    mean = WeightedMean(1)
    for weight, value in ((1.0, 2), (3.0, 7)):
        mean.add(torch.tensor([[weight]]).log(), {"n": torch.tensor([[value]])})
    assert mean.mean()["n"].item() == pytest.approx(5.75)
    moved = stack.add({"n": torch.tensor([10])}, mean.mean(), torch.tensor([0.5]))["n"]
    assert (moved.dtype, moved.tolist()) == (torch.int64, [13])
    assert stack.finite({"n": torch.tensor([[1], [2]])}).tolist() == [True, True]


def test_own_state_is_what_the_clients_use():
    """model_of a client is the server's layers with the client's own BatchNorm."""
    run = train("fedfew", "local")
    for client in range(4):
        k = int(run.choice[client])
        state = dict(run.model_of(client).state_dict())
        own = {name: t[client, k] for name, t in named_leaves(run.state.own["kept"])}
        sent = {name: t[k] for name, t in named_leaves(run.state.server)}
        assert_close(state, own | sent, 0.0)


@pytest.mark.parametrize("policy", ["local", "local-statistics"])
def test_layers_stay_with_clients_in_the_branches_of_an_update_too(policy):
    """FedNova sends parameters per step, and buffers apart. Where all clients take one step, it is FedAvg."""
    nova, avg = (train(method, policy, batch_size=1000) for method in ("fednova", "fedavg"))
    assert difference(nova, avg) < 1e-5
