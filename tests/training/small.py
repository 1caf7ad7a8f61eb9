"""A small federation and short runs on it."""

import fedfew
from tests.helpers import federation, linear

FEDERATION = federation()
SHORT = {"rounds": 3, "batch_size": 8, "lr": 0.1, "engine": "stacked"}


def train(method="fedfew", data=FEDERATION, model=linear, **settings):
    return fedfew.train(data, model, method, **(SHORT | settings))


def spiked(client=1, size=1e30):
    """A federation in which one client's features are absurdly large."""
    clients = [FEDERATION.train.of(i) for i in range(4)]
    clients[client] = (clients[client][0] * size, clients[client][1])
    return fedfew.Federation.from_arrays(clients, [FEDERATION.test.of(i) for i in range(4)], classes=3)
