"""Replies that are refused or clipped."""

import re

import pytest
import torch

import fedfew
from fedfew.flower.checks import norm
from fedfew.stack import named_leaves, tree_map
from tests.flower.support import FEDERATION, fake_network, losing, server_loop, tiny


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda reply: reply.tree.pop("0.bias"), "1 tensors are missing, the first is 0.bias"),
        (lambda reply: reply.tree.update({"more": torch.ones(1)}), "1 tensors too many"),
        (lambda reply: reply.tree.update({"0.bias": torch.ones(1, 7)}), r"0.bias has shape \[1, 7\]"),
        (lambda reply: reply.tree.update({"0.bias": torch.ones(1, 6, 2000)}), "0.bias is larger than it should be"),
        (lambda reply: reply.tree.update({"0.bias": torch.ones(1, 6).double()}), "0.bias has shape .* torch.float64, not"),
        (lambda reply: reply.tree["0.bias"].fill_(torch.inf), "0.bias is not finite"),
        (lambda reply: reply.tree["0.bias"].mul_(1e9), "its update is .* times as long as the round's median"),
        (lambda reply: reply.values.update(losses=[float("nan")]), "losses is not finite"),
        (lambda reply: reply.values.update(losses=[1e39]), "losses is not finite"),  # but in float64 it is
        (lambda reply: reply.values.update(accuracy=0.5, choice=0, loss=1e39), "its scores are out of bounds"),
        (lambda reply: reply.values.update(losses=[1.0, 2.0]), "losses is not a list of 1 numbers"),
        (lambda reply: reply.values.update(unseen=[1.0, 2.0]), "unseen is not a list of 1 numbers"),
        (lambda reply: reply.values.update(unseen=[float("inf")]), "unseen is not finite"),
        (lambda reply: reply.values.update(samples=10**6), "it was trained on another number of samples"),
        (lambda reply: reply.values.update(samples=0), "samples is not a whole number from 1"),
        (lambda reply: reply.values.update(client=2), "it names another client, run or round"),
        (lambda reply: reply.values.update(round=7), "it names another client, run or round"),
        (lambda reply: reply.values.update(run="x"), "it names another client, run or round"),
        (lambda reply: reply.values.update(started_from="0"), "started_from is not a whole number"),
        (lambda reply: reply.values.update(accuracy=2.0), "its scores are out of bounds"),
    ],
)
def test_a_wrong_reply_is_left_out_with_the_reason(change, reason, tmp_path):
    def wrong(node, message, reply):
        if message.kind == "train" and node == 101:
            change(reply)
        return reply

    run = server_loop(tmp_path, fake_network(tmp_path, change=wrong), method="fedavg", rounds=1).run()
    (event,) = run.state.events
    assert re.match(f"round 1: client 1 is left out: {reason}", event)
    lost = server_loop(tmp_path / "b", fake_network(tmp_path / "b", change=losing((1, 1))), method="fedavg", rounds=1).run()
    for (_, a), (_, b) in zip(named_leaves(run.state.server), named_leaves(lost.state.server), strict=True):
        assert torch.equal(a, b)


def test_long_updates_are_shortened_where_asked_for(tmp_path):
    def huge(node, message, reply):
        if message.kind == "train" and node == 101:
            reply.tree = tree_map(lambda t: t * 1e6, reply.tree)
        return reply

    settings = {"method": "fedavg", "rounds": 1, "refuse_ratio": 0.0}
    free = server_loop(tmp_path / "a", fake_network(tmp_path / "a", change=huge), **settings).run()
    short = server_loop(tmp_path / "b", fake_network(tmp_path / "b", change=huge), clip_norm=0.01, **settings).run()
    start = fedfew.train(FEDERATION, tiny, fedfew.FedAvg(), rounds=1, batch_size=8, lr=1e-12, engine="sequential").state.server
    assert distance(free.state.server, start) > 1e3
    assert distance(short.state.server, start) < 0.01 + 1e-6
    assert [event for event in short.state.events if "client 1's update is shortened from" in event]


def one_class_each(client: int):
    """Of every other client all labels are the same: with FedRoD's balanced loss it has nothing to learn."""
    x, y = FEDERATION.take([client]).train.of(0)
    y = torch.zeros_like(y) if client % 2 == 0 else torch.arange(len(y)) % 3
    return fedfew.Federation.from_arrays([(x, y)], [(x, y)], classes=3)


@pytest.mark.parametrize("forged", [False, True])
def test_clients_that_learn_count_where_half_of_the_others_hardly_move(forged, monkeypatch, tmp_path):
    monkeypatch.setattr("tests.flower.support.make", lambda config: one_class_each(config["client"]))
    norms = {}

    def change(node, message, reply):
        if message.kind == "train":
            reply.tree = tree_map(lambda t: t * 1e3, reply.tree) if forged and node == 103 else reply.tree
            norms[node] = norm(reply.tree), norm(message.tree)
        return reply

    network = fake_network(tmp_path, change=change)
    run = server_loop(tmp_path, network, method="fedrod", rounds=1, classes=3).run()
    lengths = sorted(length for length, _ in norms.values())
    assert lengths[2] > 100 * lengths[1]  # the median says nothing of those that learn
    assert norms[101][0] < norms[101][1]
    refused = [event for event in run.state.events if "left out" in event]
    assert [event.split(":")[1] for event in refused] == [" client 3 is left out"] * forged
    assert not forged or norms[103][0] > norms[103][1]


def distance(a, b):
    pairs = zip(named_leaves(a), named_leaves(b), strict=True)
    return sum(float((x - y).double().square().sum()) for (_, x), (_, y) in pairs) ** 0.5
