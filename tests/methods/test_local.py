from __future__ import annotations

from fedfew.methods import LocalOnly
from tests.methods.small import FULL_BATCH, assert_close, clients_of, descend, federation, initial, linear, theta, train


def test_two_rounds_by_hand() -> None:
    data = federation()
    run = train(LocalOnly(), data, **FULL_BATCH)
    for client, (x, y) in enumerate(clients_of(data)):
        assert_close(theta(run.model_of(client).state_dict()), descend(descend(theta(initial(linear)), x, y), x, y))


def test_nothing_travels() -> None:
    run = train(LocalOnly())
    assert run.history.bytes_up.sum() == run.history.bytes_down.sum() == 0
    assert run.models == []
