"""A regression on a network: the sites agree on the task, and the run is the simulator's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fedfew
from fedfew.federation import Federation
from fedfew.flower.messages import SiteMessage
from fedfew.flower.site import Site
from fedfew.flower.site_data import SiteConfig, from_npz
from tests.flower.support import SETTINGS, FakeNetwork, same_as_simulated, server_loop, site, tiny


def numbers(seed: int = 0) -> Federation:
    rng = np.random.default_rng(seed)
    slopes = rng.normal(size=(5, 3))

    def part(client: int, n: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.normal(size=(n, 5)).astype(np.float32)
        return x, x @ slopes * (-1) ** client

    return Federation.from_arrays([part(i, 12 + i) for i in range(4)], [part(i, 8) for i in range(4)])


FEDERATION = numbers()


def make(config: dict[str, int]) -> Federation:
    return FEDERATION.take([config["client"]])


def of_numbers(folder: Path, client: int) -> Site:
    node = {"client": client, "data": "tests.flower.test_tasks:make", "state": str(folder)}
    return Site(SiteConfig.read(node, {}), tiny)


def network(folder: Path) -> FakeNetwork:
    return FakeNetwork({100 + i: of_numbers(folder / "sites", i) for i in range(4)})


@pytest.mark.parametrize("loss", ["auto", "huber"])
def test_a_regression_ends_as_in_the_simulator(tmp_path: Path, loss: str) -> None:
    run = server_loop(tmp_path, network(tmp_path), method="fedfew:models=2", rounds=2, loss=loss).run()
    names = ("batch_size", "lr", "score_every")
    same = {name: SETTINGS[name] for name in names if name in SETTINGS}
    oracle = fedfew.train(FEDERATION, tiny, fedfew.FedFew(models=2), rounds=2, engine="sequential", loss=loss, **same)
    assert run.settings["federation"]["task"] == "regression"
    assert run.history.columns[1] == "served_score"
    assert run.history.last_scores("served").min() < 0  # scores below 0 are no error
    same_as_simulated(run, oracle, tmp_path / "sites")


def test_a_site_whose_score_is_undefined_reports_its_choice_and_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R² of one test sample is no number."""
    (x, y), rest = FEDERATION.test.of(3), [FEDERATION.test.of(i) for i in range(3)]
    few = Federation.from_arrays([FEDERATION.train.of(i) for i in range(4)], [*rest, (x[:1], y[:1])])
    monkeypatch.setattr("tests.flower.test_tasks.FEDERATION", few)
    run = server_loop(tmp_path, network(tmp_path), method="fedfew:models=2", rounds=2).run()
    same = {name: SETTINGS[name] for name in ("batch_size", "lr", "score_every")}
    oracle = fedfew.train(few, tiny, fedfew.FedFew(models=2), rounds=2, engine="sequential", **same)
    assert np.isnan(run.history.last_scores("served")[3])
    same_as_simulated(run, oracle, tmp_path / "sites")
    assert run.choice.tolist() == oracle.choice.tolist()
    np.testing.assert_allclose(run.predict(x.numpy(), client=3), oracle.predict(x.numpy(), client=3), rtol=1e-4)


def test_infinite_scores_are_those_of_the_simulator_and_the_server_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A client whose R² was −∞ was left out of the round, its update too, with "accuracy is not finite"."""
    train, test = FEDERATION.train, FEDERATION.test
    far = (torch.full((4, 5), 1e38), torch.arange(12.0).reshape(4, 3))  # squares of these outputs overflow
    wild = Federation.from_arrays([train.of(i) for i in range(4)], [test.of(0), far, test.of(2), test.of(3)])
    monkeypatch.setattr("tests.flower.test_tasks.FEDERATION", wild)
    caplog.set_level("INFO", logger="flwr.fedfew")
    run = server_loop(tmp_path, network(tmp_path), method="fedavg", rounds=2).run()
    same = {name: SETTINGS[name] for name in ("batch_size", "lr", "score_every")}
    oracle = fedfew.train(wild, tiny, fedfew.FedAvg(), rounds=2, engine="sequential", **same)
    for which in ("served", "adapted"):
        assert np.isneginf(oracle.history.scores(which)[:, 1]).all()
        np.testing.assert_allclose(run.history.scores(which), oracle.history.scores(which), rtol=1e-3)
    line = "round 1: training diverges, infinite scores of clients 1. Lower lr, or standardise the targets"
    assert [event for event in run.state.events if "infinite" in event] == [line]
    assert [event for event in oracle.state.events if "infinite" in event] == [line]
    assert any(logged.endswith(" s, served −∞ % (R²)") for logged in caplog.messages)


def test_a_client_that_was_away_when_clients_chose_has_no_model(tmp_path: Path) -> None:
    here = network(tmp_path)
    here.change = lambda node, message, reply: None if node == 103 and message.kind == "score" else reply
    run = server_loop(tmp_path, here, method="fedfew:models=2", rounds=1).run()
    assert run.choice.tolist()[3] == -1
    back = fedfew.export.read(fedfew.export.write(run, tmp_path / "e"), tiny)
    for source in (run, back):
        with pytest.raises(ValueError, match="which model client 3 uses is not known: it was not there"):
            source.model_of(3)
    x, _ = FEDERATION.test.of(0)
    np.testing.assert_array_equal(back.predict(x.numpy(), client=0), run.predict(x.numpy(), client=0))


def test_a_site_with_another_task_cannot_take_part(tmp_path: Path) -> None:
    here = network(tmp_path)
    here.sites[103] = site(tmp_path / "sites", 3)
    loop = server_loop(tmp_path, here, method="fedavg", rounds=1)
    loop.run()
    assert loop.server_state is not None
    assert any("task of its data is classification, the run's is regression" in e for e in loop.server_state.state.events)


def test_settings_for_classes_are_refused_before_the_first_round(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="label_prior is 'client', which adds log frequencies of classes"):
        server_loop(tmp_path, network(tmp_path), method="fedavg", label_prior="client").run()
    with pytest.raises(ValueError, match="loss is 'mine:loss', which is not known by name"):
        server_loop(tmp_path / "b", network(tmp_path / "b"), method="fedavg", loss="mine:loss").run()


def test_the_numbers_of_an_archive(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((8, 2), np.float32), y=np.arange(8) / 4)
    assert from_npz(tmp_path / "a.npz", None).task == "regression"
    np.savez(tmp_path / "b.npz", x=np.ones((8, 2), np.float32), y=np.arange(8) % 3)
    assert from_npz(tmp_path / "b.npz", None).task == "classification"
    assert from_npz(tmp_path / "b.npz", None, "regression").train.y.dtype.is_floating_point


def test_sites_with_another_number_of_targets_or_an_unknown_task_cannot_take_part(tmp_path: Path) -> None:
    def change(node: int, message: SiteMessage, reply: SiteMessage) -> SiteMessage:
        if message.kind == "join":
            reply.values |= {102: {"classes": 2}, 103: {"task": "ranking"}}.get(node, {})
        return reply

    here = network(tmp_path)
    here.change = change
    loop = server_loop(tmp_path, here, method="fedavg", rounds=1)
    loop.run()
    assert loop.server_state is not None
    events = " ".join(loop.server_state.state.events)
    assert "it has 2 targets or labels, the run 3" in events
    assert "its task is not known" in " ".join([events, *loop.registry.rejected.values()])
