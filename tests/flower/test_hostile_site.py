"""Whatever one registered site sends, the run goes on with the others."""

import math
import random

import numpy as np
import pytest
import torch
from torch import nn

import fedfew
from fedfew.flower.deployment_config import DeploymentConfig
from fedfew.flower.server_loop import ServerLoop
from fedfew.flower.site import Site
from fedfew.methods import METHODS, FedAvg
from fedfew.methods.attacks import FORGED_LOSS, Attacked
from fedfew.stack import named_leaves, tree_map
from tests.flower.support import FEDERATION, SETTINGS, FakeNetwork, fake_network, server_loop, site, tiny
from tests.methods.tiers import tiered

VALUES = [-1, 0, 10**9, 2**62, 1e39, -1e308, True, "", "\x1b[2J" * 100, [], [0.5], [1e39], [2**62, -1], [0.5] * 1000]
HOSTILE = 101


def mutate(reply, draw: random.Random) -> None:
    """Change, remove or add a value or an array."""
    arrays = dict(named_leaves(reply.tree))
    if arrays and draw.random() < 0.5:
        name = draw.choice(sorted(arrays))
        array = arrays[name]
        wrong = [array[..., None], array[:0], array.double() * 1e300, array.to(torch.int8), torch.full_like(array, 127)]
        reply.tree = {name: draw.choice(wrong)} if draw.random() < 0.2 else reply.tree | {name: draw.choice(wrong)}
        return
    name = draw.choice([*sorted(reply.values), "kind"])
    if name == "kind":
        reply.kind = draw.choice(["join", "train", "score", "reveal", "failed", "nonsense"])
    elif draw.random() < 0.2:
        del reply.values[name]
    else:
        reply.values[name] = draw.choice(VALUES)


def attack(seed: int, kinds: tuple[str, ...]):
    draw = random.Random(seed)

    def change(node, message, reply):
        if node == HOSTILE and message.kind in kinds:
            mutate(reply, draw)
        return reply

    return change


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedfew", "ditto"])
def test_a_run_survives_a_site_that_sends_nonsense_in_every_round(method, tmp_path):
    """Sixty rounds with another mutation of client 1's replies in each."""
    network = fake_network(tmp_path, change=attack(0, ("train", "score")))
    run = server_loop(tmp_path, network, method=method, rounds=60, score_every=1).run()
    assert run.round == 60
    answered = ~np.isnan(run.history.losses).any(2)
    assert answered[:, [0, 2, 3]].all()
    assert answered[:, 1].mean() < 0.5
    assert all(torch.isfinite(t).all() for _, t in named_leaves(run.state.server))
    assert len([event for event in run.state.events if "client 1 is left out" in event]) > 30


@pytest.mark.slow
def test_a_masked_run_survives_it_too(tmp_path):
    """Where the sum cannot be unmasked the models stay as they are for a round; the run itself goes on."""
    network = fake_network(tmp_path, change=attack(1, ("train", "share-keys", "reveal")))
    run = server_loop(tmp_path, network, method="fedfew", aggregation="masked", rounds=30, score_every=1).run()
    assert run.round == 30
    assert (~np.isnan(run.history.losses).any(2))[:, [0, 2, 3]].all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_run_starts_whatever_a_site_joins_with(seed, tmp_path):
    run = server_loop(tmp_path, fake_network(tmp_path, change=attack(seed, ("join",))), method="fedavg", rounds=1).run()
    assert (~np.isnan(run.history.losses).any(2))[0, [0, 2, 3]].sum() >= 2  # it may claim another client's number
    assert dict(named_leaves(run.state.server))["2.bias"].shape == (1, 3)


@pytest.mark.parametrize("method", tiered(METHODS))
def test_no_method_ends_by_numbers_that_are_extreme(method, tmp_path):
    """Client 1 sends another extreme in each round: losses below 0, losses and an update next to nothing, enormous losses, losses
    for one model alone, an update of 0."""

    def extreme(node, message, reply):
        if node == HOSTILE and message.kind == "train":
            number = message.values["round"]
            losses = {1: -1e38, 2: 1e-45, 3: 1e38, 5: -3.0}
            sent = reply.values["losses"]
            reply.values["losses"] = [losses.get(number, sent[0])] + [losses.get(number, math.inf)] * (len(sent) - 1)
            if number in (2, 5):
                to = 1e-42 if number == 2 else 0.0
                reply.tree = tree_map(lambda t: torch.full_like(t, to) if t.is_floating_point() else t, reply.tree)
        return reply

    settings = {"method": method, "rounds": 5, "score_every": 1, "check_share": 0.1}
    run = server_loop(tmp_path, fake_network(tmp_path, change=extreme), **settings).run()
    assert run.round == 5
    assert all(torch.isfinite(t).all() for _, t in named_leaves(run.state.server) if t.is_floating_point())
    assert (~np.isnan(run.history.losses).all(2))[:, [0, 2, 3]].all()
    assert not [event for event in run.state.events if "is left out" in event and "client 1" not in event]


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6, momentum=None), nn.ReLU(), nn.Linear(6, 3))


@pytest.mark.parametrize("aggregation", ["plain", pytest.param("masked", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("statistic", "value"), [("running_var", -3), ("num_batches_tracked", -10)])
def test_negative_statistics_of_batch_norm_harm_no_other_site(statistic, value, aggregation, tmp_path, monkeypatch):
    """A variance below 0 is NaN in evaluation. -10 makes the server's count of batches -2: adding to it, clients divide by 0."""
    client = FedAvg.client

    def negative(self, received, own, local):
        outcome = client(self, received, own, local)
        if local.clients.tolist() == [1]:
            outcome.reply.update[f"1.{statistic}"].fill_(value)
        return outcome

    monkeypatch.setattr(FedAvg, "client", negative)
    network = FakeNetwork({100 + i: Site(site(tmp_path, i).config, normalised) for i in range(4)})
    config = DeploymentConfig(**SETTINGS | {"folder": str(tmp_path / "run"), "method": "fedavg", "aggregation": aggregation})
    run = ServerLoop(config, network, lambda data: normalised, network.clock).run()
    assert run.round == 3
    assert not [event for event in run.state.events if "is left out" in event or "is not scored" in event]
    assert np.isfinite(run.history.served_loss).all()


def forged(node, message, reply):
    """Client 1 reports a loss of 1000 for all models and sends zeros."""
    if node == HOSTILE and message.kind == "train":
        reply.values["losses"] = [FORGED_LOSS] * len(reply.values["losses"])
        reply.tree = {name: torch.zeros_like(t) for name, t in reply.tree.items()}
    return reply


def assert_alike(run, oracle):
    """All but scores: in the simulator attackers have none."""
    for (name, a), (_, b) in zip(named_leaves(run.state.server), named_leaves(oracle.state.server), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, msg=name)
    for name in ("losses", "alpha", "w"):
        np.testing.assert_allclose(run.history[name], oracle.history[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_forged_loss_is_capped_as_in_the_simulator(tmp_path):
    run = server_loop(tmp_path, fake_network(tmp_path, change=forged)).run()
    training = {name: SETTINGS[name] for name in ("rounds", "batch_size", "lr")}
    oracle = fedfew.train(FEDERATION, tiny, Attacked(fedfew.FedFew(), "forged-loss", (1,)), engine="sequential", **training)
    assert_alike(run, oracle)
    assert run.history.alpha[0, 1] == pytest.approx(0.75)  # 3 / 4 clients; later its losses are bounded as well
    assert (run.history.alpha[1:, 1] <= 0.75 + 1e-6).all()
    assert "the weight of client 1 is capped: by its losses it would have 100 %" in run.state.events[0]


@pytest.mark.parametrize("rule", ["median", "norm-bound"])
def test_a_robust_rule_is_the_same_as_in_the_simulator(rule, tmp_path):
    run = server_loop(tmp_path, fake_network(tmp_path, change=forged), aggregator=rule).run()
    training = {name: SETTINGS[name] for name in ("rounds", "batch_size", "lr")} | {"aggregator": rule}
    oracle = fedfew.train(FEDERATION, tiny, Attacked(fedfew.FedFew(), "forged-loss", (1,)), engine="sequential", **training)
    assert_alike(run, oracle)


def test_a_rule_without_effect_is_logged(tmp_path):
    settings = {"aggregator": "median", "server_optimizer": "momentum", "method": "local", "rounds": 1}
    run = server_loop(tmp_path, fake_network(tmp_path), **settings).run()
    assert "aggregator is median, but local averages no updates: it has no effect" in run.state.events
    assert "server_optimizer is momentum, but local averages no updates: it has no effect" in run.state.events


def test_with_masks_it_is_capped_too(tmp_path):
    """The server sees losses, and decides on weights by them, before updates are masked."""
    run = server_loop(tmp_path, fake_network(tmp_path, change=forged), aggregation="masked", rounds=2).run()
    assert run.history.alpha[0, 1] == pytest.approx(0.75)
    weights = [t for _, t in named_leaves(run.state.server)]
    plain = server_loop(tmp_path / "p", fake_network(tmp_path / "p", change=only_losses), rounds=2).run()
    for a, (_, b) in zip(weights, named_leaves(plain.state.server), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def only_losses(node, message, reply):
    """With masks the update is not in the message that carries the losses."""
    update = reply.tree
    reply = forged(node, message, reply)
    reply.tree = update
    return reply
