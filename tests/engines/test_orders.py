"""Orders of samples drawn for several rounds at once: the same as drawn round by round."""

import pytest
import torch

from fedfew import random_streams
from fedfew.engines import orders
from fedfew.engines.orders import AHEAD, Orders
from fedfew.local import LocalEpochs
from tests.engines.small import FEDERATION, mlp, replicas

SAMPLES, IDS = FEDERATION.train, FEDERATION.ids


def work(round, clients=None):
    if clients is None:
        return LocalEpochs(replicas(mlp), SAMPLES, IDS, round)
    return LocalEpochs(replicas(mlp, len(clients)), SAMPLES.take(clients), IDS[clients], round)


def expected(round, epoch=0):
    return random_streams.order(3, round, IDS, 2, epoch, SAMPLES.count, SAMPLES.longest)


def test_the_same_as_one_round_after_the_other(monkeypatch):
    found, drawn = Orders(3), []
    permutations = random_streams.permutations
    monkeypatch.setattr(random_streams, "permutations", lambda *given: drawn.append(1) or permutations(*given))
    assert found.of(work(1), 0) is None
    assert found.of(work(1), 1) is None
    ours = [[found.of(work(round), epoch) for epoch in (0, 1)] for round in range(2, 2 + 2 * AHEAD)]
    assert len(drawn) == 4  # two epochs, twice AHEAD rounds
    for round, of_epochs in enumerate(ours, 2):
        for epoch, order in enumerate(of_epochs):
            assert torch.equal(order, expected(round, epoch))


def test_rounds_may_be_skipped():
    found = Orders(3)
    assert found.of(work(1), 0) is None
    for round in (2, 5, 50):
        assert torch.equal(found.of(work(round), 0), expected(round))


def test_clients_that_change_from_round_to_round_draw_alone():
    found, some = Orders(3), torch.tensor([0, 2])
    for round in range(1, 9, 2):
        assert found.of(work(round), 0) is None
        assert found.of(work(round + 1, some), 0) is None


@pytest.mark.parametrize("most", [4 * 2 * SAMPLES.longest, 4 * 2 * SAMPLES.longest - 1])
def test_long_orders_are_drawn_alone(most, monkeypatch):
    monkeypatch.setattr(orders, "FEW", most)
    found = Orders(3)
    found.of(work(1), 0)
    assert (found.of(work(2), 0) is None) == (most < 4 * 2 * SAMPLES.longest)
