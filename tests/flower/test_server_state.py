"""Checkpoints of the server: stopping and continuing, and what the run's folder can be used for."""

import json
import shutil

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fedfew
from fedfew import models
from fedfew.cli import app
from fedfew.flower.deployment_config import DeploymentConfig
from fedfew.flower.messages import JOIN, SiteMessage
from fedfew.flower.server_loop import ServerLoop
from fedfew.stack import leaves
from tests.flower.support import (
    FEDERATION,
    SETTINGS,
    fake_network,
    same_as_simulated,
    server_loop,
    simulated,
    tiny,
)


class PowerCutError(Exception):
    """The server is gone."""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ditto", "fedamp", "fedfew"])
@pytest.mark.parametrize("checkpoint_every", [1, 2])
def test_a_killed_server_continues_from_its_checkpoint(method, checkpoint_every, tmp_path):
    """In round 4, when sites have trained it already; with a checkpoint every other round, rounds 3 and 4 are done again."""

    def cut(node, message, reply):
        if message.kind == "train" and message.values["round"] == 4 and node == 103:
            raise PowerCutError
        return reply

    settings = {"method": method, "rounds": 5, "checkpoint_every": checkpoint_every}
    with pytest.raises(PowerCutError):
        server_loop(tmp_path, fake_network(tmp_path, change=cut), **settings).run()
    after = {1: 3, 2: 2}[checkpoint_every]
    assert fedfew.load(tmp_path / "run", tiny).round == after
    run = server_loop(tmp_path, fake_network(tmp_path), **settings).run()
    assert run.state.events == [f"resumed after round {after}"]
    same_as_simulated(run, simulated(method=method, rounds=5), tmp_path / "sites")


def test_a_site_that_lost_its_state_says_so(tmp_path):
    server_loop(tmp_path, fake_network(tmp_path), method="ditto", rounds=2).run()
    shutil.rmtree(tmp_path / "sites" / "client-1")
    run = server_loop(tmp_path, fake_network(tmp_path), method="ditto", rounds=3).run()
    assert run.state.events == [
        "resumed after round 2",
        "round 3: client 1 had lost its private state and started from that of round 0",
    ]


@pytest.mark.parametrize("then", ["none", "bf16"])
def test_compression_can_change_when_a_run_continues(then, tmp_path):
    """Sites then keep no residual any more, which is no private state that they have lost."""
    for rounds, compression in ((2, "int8"), (4, then), (5, "int8")):
        run = server_loop(tmp_path, fake_network(tmp_path), method="fedavg", rounds=rounds, compression=compression).run()
    assert run.state.events == ["resumed after round 2", "resumed after round 4"]


def test_a_folder_that_is_refused_takes_no_time_of_waiting(tmp_path):
    server_loop(tmp_path, fake_network(tmp_path), method="fedavg", rounds=1).run()
    nobody = fake_network(tmp_path, clients=0)
    with pytest.raises(ValueError, match=r"rounds is 1, but the run in .* has done 1"):
        server_loop(tmp_path, nobody, method="fedavg", rounds=1).run()
    assert nobody.clock.now == 0


def test_a_folder_with_another_or_a_finished_run_is_refused(tmp_path):
    server_loop(tmp_path, fake_network(tmp_path), method="fedavg").run()
    with pytest.raises(ValueError, match=r"rounds is 3, but the run in .* has done 3"):
        server_loop(tmp_path, fake_network(tmp_path), method="fedavg").run()
    with pytest.raises(ValueError, match=r"belongs to another run: its lr is 0\.1, not 0\.2"):
        server_loop(tmp_path, fake_network(tmp_path), method="fedavg", lr=0.2, rounds=9).run()


@pytest.mark.parametrize("changes", [{"clients": 3}, {"clients": 5}, {"classes": 7}])
def test_a_run_is_continued_with_the_clients_and_classes_that_it_has(changes, tmp_path):
    server_loop(tmp_path, fake_network(tmp_path), method="fedavg", rounds=1).run()
    ((name, given),) = changes.items()
    has = {"clients": 4, "classes": 3}[name]
    with pytest.raises(ValueError, match=rf"{name} is {given}, but the run in .* has {has}: keep that, or set another folder"):
        server_loop(tmp_path, fake_network(tmp_path), method="fedavg", rounds=2, **changes).run()


@pytest.mark.parametrize(
    "settings", [{"aggregation": "masked"}, {"dp_noise": 1.0, "refuse_ratio": 0.0}], ids=["masked", "private"]
)
def test_sites_get_their_models_also_if_the_server_is_killed_while_they_score_the_last_round(settings, tmp_path):
    """Such runs are written before they are scored; nothing of the round is repeated."""

    def cut(node, message, reply):
        if message.kind == "score" and message.values["round"] == 2:
            raise PowerCutError
        return reply

    settings = settings | {"method": "fedavg", "rounds": 2}
    with pytest.raises(PowerCutError):
        server_loop(tmp_path, fake_network(tmp_path, change=cut), **settings).run()
    before = fedfew.load(tmp_path / "run", tiny)
    network = fake_network(tmp_path)
    run = server_loop(tmp_path, network, **settings).run()
    assert [kind for kind, _ in network.exchanges] == ["join", "score"]
    assert all(map(torch.equal, leaves(run.state.server), leaves(before.state.server)))
    assert len(list(tmp_path.glob("sites/client-*/*/model.safetensors"))) == 4
    assert run.state.events == [
        "resumed after round 2",
        "round 2 is not in the history: the server was stopped before it was scored",
    ]


def test_the_file_about_the_data_is_whole_or_the_one_before(tmp_path, monkeypatch):
    """A server that is killed while it writes it leaves no half of one."""
    server_loop(tmp_path, fake_network(tmp_path), method="fedavg", rounds=1).run()
    before = (tmp_path / "run" / "federation.json").read_text()

    def killed(fd):
        raise PowerCutError

    loop = server_loop(tmp_path, fake_network(tmp_path), method="fedavg", rounds=2)
    loop.begin()
    loop.server_state.sites["samples"][0] = 10**9
    monkeypatch.setattr("fedfew.training.checkpoint.write", lambda *_: None)
    monkeypatch.setattr("os.fsync", killed)
    with pytest.raises(PowerCutError):
        loop.server_state.write([])
    assert (tmp_path / "run" / "federation.json").read_text() == before


def test_a_site_that_changed_its_data_is_rejected_when_the_run_continues(tmp_path):
    server_loop(tmp_path, fake_network(tmp_path), method="fedavg", rounds=2).run()

    def wider(node, message, reply):
        return SiteMessage(JOIN, reply.values | {"classes": 9}) if message.kind == JOIN and node == 101 else reply

    run = server_loop(tmp_path, fake_network(tmp_path, change=wider), method="fedavg", rounds=3).run()
    assert run.state.events == [
        "node 101 cannot take part: it has 9 classes, the run 3",
        "resumed after round 2",
        "round 3: not there to choose and save a model: client 1",
    ]
    assert np.isnan(run.history.losses[-1]).any(1).tolist() == [False, True, False, False]


def test_the_folder_can_be_shown_and_selected_from(tmp_path):
    config = {"model": "mlp", "method": "fedfew", "rounds": 2}
    network = fake_network(tmp_path)
    for here in network.sites.values():
        here.model = "mlp"
    ServerLoop(DeploymentConfig(**(SETTINGS | config | {"folder": str(tmp_path / "run")})), network, mlp, network.clock).run()
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "run"), "--json"])
    assert shown.exit_code == 0, shown.output
    about = json.loads(shown.stdout)
    assert [client["client"] for client in about["clients"]] == [0, 1, 2, 3]
    assert about["data"]["train"] == FEDERATION.train.count.tolist()
    x, y = FEDERATION.test.of(0)
    np.savez(tmp_path / "mine.npz", x=x.numpy(), y=y.numpy())
    chosen = CliRunner().invoke(app, ["select", str(tmp_path / "run"), "--data", str(tmp_path / "mine.npz"), "--json"])
    assert json.loads(chosen.stdout)["samples"] == 6


def mlp(data):
    return lambda: models.build("mlp", tuple(data["shape"]), data["classes"])


@pytest.mark.parametrize(
    "method", ["ditto", "apfl", "fedrep", "fedrod", "feddbe", "fedper", "lgfedavg", "local", "fedamp", "fedmtl"]
)
def test_the_server_does_not_pretend_to_know_models_that_sites_keep(method, tmp_path):
    run = server_loop(tmp_path, fake_network(tmp_path), method=method, rounds=1).run()
    with pytest.raises(ValueError, match="client 2 keeps a model of its own at its site"):
        run.model_of(2)
    assert not run.serves_server_models
    if not run.models:
        with pytest.raises(ValueError, match="none to export; each site has saved the one that it uses"):
            fedfew.export.write(run, tmp_path / "e")
    else:
        found = fedfew.export.read(fedfew.export.write(run, tmp_path / "e"), tiny)
        assert not found.card["scores_are_of_these_models"]
        with pytest.raises(ValueError, match="models that their sites keep"):
            found.model_of(2)


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"method": "fedfew:models=2", "serve": "mixture"}, "the weights of its mixture"),
        ({"method": "fedem:models=2"}, "the weights of its mixture"),
        ({"method": "fedfew:models=2", "label_prior": "client"}, "its label frequencies"),
        ({"method": "fedavg", "label_prior": "client"}, "its label frequencies"),
    ],
)
def test_the_server_does_not_predict_without_what_sites_keep(settings, kept, tmp_path):
    run = server_loop(tmp_path, fake_network(tmp_path), rounds=1, **settings).run()
    x, y = FEDERATION.test.of(2)
    for source in (run, fedfew.load(tmp_path / "run", tiny)):
        with pytest.raises(ValueError, match=f"client 2 keeps {kept} at its site"):
            source.predict(x.numpy(), client=2)
        with pytest.raises(ValueError, match="client is missing"):
            source.predict(x.numpy())
    back = fedfew.export.read(fedfew.export.write(run, tmp_path / "e"), tiny)
    with pytest.raises(ValueError, match="what client 2 uses is not in this export"):
        back.model_of(2)
    assert len(back.for_new_client(x.numpy(), y.numpy()).predict(x.numpy())) == len(x)


def test_a_mixture_of_one_model_is_that_model(tmp_path):
    run = server_loop(tmp_path, fake_network(tmp_path), rounds=1, method="fedavg", serve="mixture").run()
    x, _ = FEDERATION.test.of(2)
    np.testing.assert_array_equal(run.predict(x.numpy(), client=2), run.predict(x.numpy()))


@pytest.mark.parametrize(("method", "mixes"), [("fedsoft:models=2", False), ("fedfew:models=2", True), ("ditto", False)])
def test_a_new_client_mixes_models_where_the_simulator_does(method, mixes, tmp_path):
    settings = {"method": method, "rounds": 1, "serve": "mixture"}
    run = server_loop(tmp_path, fake_network(tmp_path), **settings).run()
    oracle = fedfew.train(FEDERATION, tiny, run.method, rounds=1, serve="mixture", engine="sequential")
    assert run.mixes == oracle.mixes == mixes
