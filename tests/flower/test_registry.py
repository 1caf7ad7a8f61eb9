"""Which node is which client: late, restarted and unfit sites."""

import re

import numpy as np
import pytest
from torch import nn

from fedfew.flower.deployment_config import DeploymentConfig
from fedfew.flower.messages import JOIN, SiteMessage
from fedfew.flower.server_loop import ServerLoop, TooFewError
from fedfew.stack import named_leaves
from tests.flower import support
from tests.flower.support import (
    SETTINGS,
    fake_network,
    same_as_simulated,
    server_loop,
    simulated,
    site,
)
from tests.helpers import federation


def test_a_late_site_takes_part_from_the_next_round_on(tmp_path):
    network = fake_network(tmp_path, clients=3)

    def arrive(node, message, reply):
        if message.kind == "train" and message.values["round"] == 2:
            network.sites[103] = site(tmp_path / "sites", 3)
        return reply

    network.change = arrive
    run = server_loop(tmp_path, network, method="fedavg").run()
    answered = ~np.isnan(run.history.losses).any(2)
    assert answered.tolist() == [[True, True, True, False]] * 2 + [[True] * 4]
    assert run.state.events == ["started without client 3"]


def test_a_restarted_site_is_the_same_client_once_its_old_node_is_gone(tmp_path):
    network = fake_network(tmp_path)

    def restart(node, message, reply):
        if message.kind == "train" and message.values["round"] == 1:
            network.sites[202] = site(tmp_path / "sites", 2)  # known twice for a while
        if message.kind == "score" and message.values["round"] == 2 and node == 103:
            network.sites.pop(102, None)
        return reply

    network.change = restart
    run = server_loop(tmp_path, network, method="ditto").run()
    assert run.state.events == [
        "a second node joined as client 2: it waits until the first is gone",
        "client 2 is back as another node",
    ]
    same_as_simulated(run, simulated(method="ditto"), tmp_path / "sites")
    assert 202 in network.exchanges[-1][1]
    assert 102 not in network.exchanges[-1][1]


def test_sites_that_do_not_fit_are_rejected_with_the_reason(tmp_path):
    network = fake_network(tmp_path, clients=3)
    network.sites[104] = site(tmp_path / "sites", 3)
    network.sites[105] = site(tmp_path / "sites", 3, data="no.such:module")

    def wide(node, message, reply):
        if message.kind == "join" and node == 104:
            reply.values["client"] = 7
        if message.kind == "train":
            network.sites.setdefault(106, site(tmp_path / "sites", 3))
        if message.kind == "join" and node == 106:  # late, with other data
            reply.values["shape"] = [6]
        return reply

    network.change = wide
    run = server_loop(tmp_path, network, method="fedavg").run()
    assert "node 104 cannot take part: client is not a whole number from 0 to 3" in run.state.events
    assert "node 105 cannot take part: the site failed: data" in run.state.events
    assert "node 106 cannot take part: shape of its data is [6], the run's is [5]" in run.state.events


def joining(changes):
    """Join messages with these values changed, by client."""

    def change(node, message, reply):
        return SiteMessage(JOIN, reply.values | changes.get(node - 100, {})) if message.kind == JOIN else reply

    return change


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pixels": "unit"}, "pixels of its data is unit, the run's is symmetric"),
        ({"shape": [5, 10**6]}, r"shape of its data is \[5, 1000000\], the run's is \[5\]"),
        ({"vocabulary": 2**30}, "vocabulary of its data is 1073741824, the run's is None"),
        ({"padding": 2**31}, "padding of its data is 2147483648, the run's is None"),
        ({"classes": 10_000_000}, "it has 10000000 classes, the run 3"),
    ],
)
@pytest.mark.parametrize("client", [0, 2])
def test_one_site_with_absurd_data_does_not_end_the_run(client, changes, reason, tmp_path):
    """It is rejected, whether it is the first site or another; the others train a model of the right size."""
    run = server_loop(tmp_path, fake_network(tmp_path, change=joining({client: changes})), method="fedavg", rounds=1).run()
    event, absent = run.state.events
    assert absent == f"round 1: not there to choose and save a model: client {client}"
    assert re.fullmatch(f"node {100 + client} cannot take part: {reason}", event)
    assert np.isnan(run.history.losses[0]).any(1).tolist() == [i == client for i in range(4)]
    assert dict(named_leaves(run.state.server))["2.bias"].shape == (1, 3)


def changed(train):
    """A data factory: client 1 with so many training samples."""
    one = federation(sizes=(23, train, 7, 31))
    return lambda config: one.take([config["client"]])


@pytest.mark.parametrize("comes_back", [False, True], ids=["while-it-is-there", "as-the-same-node"])
def test_a_site_whose_data_grew_joins_again(comes_back, tmp_path, monkeypatch):
    """With keys a restarted SuperNode is the same node, which has joined already; the number of its samples then was refused in
    every round."""
    monkeypatch.setattr(support, "grown", changed(44), raising=False)
    network = fake_network(tmp_path)

    def grow(node, message, reply):
        if message.kind == "train" and node == 103:
            if comes_back and message.values["round"] == 1:
                del network.sites[101]
            elif message.values["round"] == 2 - (not comes_back):
                network.sites[101] = site(tmp_path / "sites", 1, data="tests.flower.support:grown")
        return reply

    network.change = grow
    run = server_loop(tmp_path, network, method="fedavg", rounds=5, score_every=1).run()
    number = 2 + comes_back
    assert run.state.events == [
        f"round {number}: client 1 is left out: it was trained on another number of samples than the site joined with: it is "
        "asked to join again"
    ]
    away = np.isnan(run.history.losses).any(2)[:, 1]
    assert away.tolist() == [False, *[True] * (1 + comes_back), *[False] * (3 - comes_back)]
    assert run.state.sites["samples"][1] == 44


@pytest.mark.parametrize(("features", "classes"), [(4, 3), (5, 5)], ids=["columns", "classes"])
def test_a_site_whose_data_became_of_another_kind_says_so(features, classes, tmp_path, monkeypatch):
    """It was an error of training, in PyTorch's words at the site; a class that the run has not could go unnoticed."""
    one = federation(sizes=(23, 40, 7, 31), features=features, classes=classes)
    monkeypatch.setattr(support, "other", lambda config: one.take([1]), raising=False)
    network = fake_network(tmp_path)

    def replaced(node, message, reply):
        if message.kind == "train" and node == 103 and message.values["round"] == 1:
            network.sites[101] = site(tmp_path / "sites", 1, data="tests.flower.support:other")
        return reply

    network.change = replaced
    run = server_loop(tmp_path, network, method="fedavg", rounds=2, score_every=2).run()
    assert run.state.events == [
        "round 2: client 1 is left out: the site failed: data",
        "round 2: client 1 is not scored: the site failed: data",
    ]
    words = "shape is [4], the run's is [5]" if features == 4 else "5 classes, targets or labels, the run's have 3"
    assert f"the data here are not of the run's kind: {words}" in (tmp_path / "sites/client-1/errors.log").read_text()


def test_a_site_that_could_not_join_is_asked_again_after_a_deadline(tmp_path, monkeypatch):
    """Its data were missing when the run began; nobody restarted it when they were there. The reason is logged once, by name."""
    network = fake_network(tmp_path)
    network.names = {100: "north", 101: "east", 102: "south", 103: "west"}
    network.sites[101] = site(tmp_path / "sites", 1, data="tests.flower.support:missing")

    def mended(node, message, reply):
        network.clock.now += 2.0  # of a deadline of 10
        if message.kind == "train" and message.values["round"] == 4:
            monkeypatch.setattr(support, "missing", support.make, raising=False)
        return reply

    network.change = mended
    names = ",".join(network.names.values())
    run = server_loop(tmp_path, network, method="fedavg", rounds=8, score_every=8, sites=names).run()
    assert run.state.events == [
        "site 'east' (node 101) cannot take part: the site failed: data",
        "started without client 1",
    ]
    asked = [kind for kind, nodes in network.exchanges if nodes == [101]]
    assert 2 <= asked.count("join") <= 6
    assert run.state.sites["last"] == [8, 8, 8, 8]


def test_without_a_majority_sites_cannot_start_a_run(tmp_path):
    odd = joining({1: {"pixels": "unit"}, 3: {"pixels": "unit"}})
    with pytest.raises(ValueError, match="pixels is symmetric for client 0, but unit for client 1"):
        server_loop(tmp_path, fake_network(tmp_path, change=odd), method="fedavg").run()


def five():
    return nn.Linear(5, 5)


def test_the_number_of_classes_can_be_set(tmp_path):
    network = fake_network(tmp_path)
    for one in network.sites.values():
        one.model = five
    config = DeploymentConfig(**(SETTINGS | {"folder": str(tmp_path / "run"), "method": "fedavg", "rounds": 1, "classes": 5}))
    run = ServerLoop(config, network, lambda data: five, network.clock).run()
    assert run.settings["federation"]["classes"] == 5
    refused = server_loop(tmp_path / "b", fake_network(tmp_path / "b"), method="fedavg", classes=2, attempts=1)
    with pytest.raises(TooFewError):
        refused.run()
    assert "node 100 cannot take part: it has 3 classes, the run 2" in refused.server_state.state.events


def test_a_site_cannot_take_another_clients_place(tmp_path):
    """Node 104 has a registered key, "mallory", and claims to be client 0 before the real client 0 has joined."""
    names = {100: "north", 101: "east", 102: "south", 103: "west", 104: "mallory"}
    for sites, thief in (("", True), ("north,east,south,west", False)):
        network = fake_network(tmp_path / sites)
        network.names, late = names, network.sites.pop(100)
        network.sites[104] = site(tmp_path / sites / "sites", 0)

        def arrive(node, message, reply, network=network, late=late):
            network.sites.setdefault(100, late)
            return reply

        network.change = arrive
        loop = server_loop(tmp_path / sites, network, method="fedavg", rounds=1, sites=sites, gather=3.0)
        loop.run()
        client_0 = next(node for node, member in loop.registry.members.items() if member.client == 0)
        assert client_0 == (104 if thief else 100)
    assert loop.registry.rejected == {104: "it claims to be client 0, which is 'north', but is registered as 'mallory'"}


def test_without_bound_names_the_log_says_so(tmp_path, caplog):
    network = fake_network(tmp_path)
    network.names = {100: "north"}
    server_loop(tmp_path, network, method="fedavg", rounds=1).run()
    assert "sites is not set: any registered site can take the place of any client" in caplog.text


def test_a_site_s_name_cannot_control_the_terminal(tmp_path):
    odd = joining({client: {"name": "\x1b[2Jdigits\n"} for client in range(4)})
    run = server_loop(tmp_path, fake_network(tmp_path, change=odd), method="fedavg", rounds=1).run()
    assert run.settings["federation"]["name"] == "[2Jdigits"
