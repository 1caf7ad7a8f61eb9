"""Which node is which client: late, restarted and unfit sites."""

import numpy as np
import pytest

from fedfew.flower.messages import JOIN, SiteMessage
from tests.flower.support import (
    fake_network,
    same_as_simulated,
    server_loop,
    simulated,
    site,
)


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
    assert "node 106 cannot take part: shape of its data is (6,), the run's is [5]" in run.state.events


def test_sites_that_do_not_fit_together_cannot_start_a_run(tmp_path):
    def odd(node, message, reply):
        return SiteMessage(JOIN, reply.values | {"pixels": "unit"}) if message.kind == JOIN and node == 101 else reply

    with pytest.raises(ValueError, match="pixels is symmetric for client 0, but unit for client 1"):
        server_loop(tmp_path, fake_network(tmp_path, change=odd), method="fedavg").run()
