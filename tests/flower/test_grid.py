"""Flower's grid as a network."""

from types import SimpleNamespace

import pytest
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.task_identity import TaskIdentity

from fedfew.flower.grid import FlowerNetwork
from fedfew.flower.messages import JOIN, TRAIN, SiteMessage
from tests.flower.support import tiny


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    """Flower's messages ask who writes them."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def test_messages_to_all_share_their_arrays():
    sent = []
    grid = SimpleNamespace(push_messages=lambda messages: sent.extend(messages) or ["m1", "m2"])
    tree = tiny().state_dict()
    FlowerNetwork(grid).send({node: SiteMessage(TRAIN, {"round": 1, "client": node}, tree) for node in (100, 101)}, 5)
    first, second = (message.content for message in sent)
    assert first["arrays"] is second["arrays"]
    assert (first["numbers"]["client"], second["numbers"]["client"]) == (100, 101)


def test_a_message_that_cannot_be_sent_is_not_waited_for():
    grid = SimpleNamespace(push_messages=lambda messages: [None, "m2"])
    assert FlowerNetwork(grid).send({1: SiteMessage(JOIN), 2: SiteMessage(JOIN)}, 5) == {"m2": 2}


def test_pauses_grow(monkeypatch):
    slept = []
    monkeypatch.setattr("fedfew.flower.grid.time.sleep", slept.append)
    for waited in (0.0, 5.0, 1000.0):
        FlowerNetwork(SimpleNamespace()).pause(waited)
    assert slept == [0.05, 0.5, 2.0]


def test_names_of_nodes_are_those_that_their_keys_were_registered_under():
    grid = SimpleNamespace(get_nodes=lambda: [NodeInfo(node_id=7, name="north"), NodeInfo(node_id=8)])
    assert FlowerNetwork(grid).registered_names() == {7: "north"}
