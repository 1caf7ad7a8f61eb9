"""A whole round of the protocol in one process, with drop-outs where a test wants them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedfew.flower.secure.client import MaskingClient
from fedfew.flower.secure.fixed_point import UInt64Array
from fedfew.flower.secure.server import MaskingServer

STEPS = ["share_keys", "mask", "reveal"]


class Round:
    """Clients 0, 1, …, each with integers of its own; ``absent`` says at which step a client drops out.

    A client that is absent from a step takes no later one. Clients are serialised between any two steps, as they are at a site.
    """

    def __init__(
        self,
        values: Mapping[int, UInt64Array],
        absent: Mapping[int, str] | None = None,
        most_weight: Mapping[int, float] | None = None,
    ) -> None:
        self.most_weight = most_weight or {}
        self.values, self.absent = values, dict(absent or {})
        self.server = MaskingServer(len(next(iter(values.values()))))
        self.weights = [1 / len(values)]  # of every client
        self._saved: dict[int, str] = {}
        self.uploads: dict[int, UInt64Array] = {}

    def client(self, number: int) -> MaskingClient:
        return MaskingClient.loads(self._saved[number])

    def save(self, client: MaskingClient) -> None:
        self._saved[client.client] = client.dumps()

    def present(self, step: str) -> list[int]:
        gone = {client for client, at in self.absent.items() if STEPS.index(at) <= STEPS.index(step)}
        return [client for client in self.values if client not in gone]

    def begin(self) -> None:
        for number in self.values:
            client = MaskingClient.begin(number, self.server.session, self.most_weight.get(number, 1.0))
            self.server.join(number, client.public)
            self.save(client)
        self.server.close()

    def share_keys(self) -> None:
        for number in self.present("share_keys"):
            client = self.client(number)
            self.server.add_shares(number, client.share_keys(self.server.participants, self.server.threshold))
            self.save(client)

    def mask(self) -> None:
        shares = self.server.forwarded_shares()
        for number in self.present("mask"):
            client = self.client(number)
            self.uploads[number] = client.mask(self.values[number], shares[number], self.weights)
            self.server.upload(number, self.uploads[number])
            self.save(client)

    def reveal(self) -> None:
        survivors = dict.fromkeys(self.server.survivors, self.weights)
        for number in self.present("reveal"):
            client = self.client(number)
            self.server.reveal(number, client.reveal(survivors))
            self.save(client)

    def run(self) -> UInt64Array:
        self.begin()
        self.share_keys()
        self.mask()
        self.reveal()
        return self.server.unmask()


def after(step: str, clients: int = 4) -> Round:
    round = Round(random_values(clients, 5))
    round.begin()
    for name in STEPS:
        getattr(round, name)()
        if name == step:
            break
    return round


def equal(clients: set[int]) -> dict[int, list[float]]:
    """The weights of clients in a round of four."""
    return {client: [0.25] for client in clients}


def random_values(clients: int, size: int, seed: int = 0) -> dict[int, UInt64Array]:
    draw = np.random.default_rng(seed)
    return {client: draw.integers(0, 2**64, size, dtype=np.uint64) for client in range(clients)}


def plain_sum(values: Mapping[int, UInt64Array], of: list[int]) -> UInt64Array:
    """By Python's integers."""
    size = len(next(iter(values.values())))
    return np.array([sum(int(values[c][p]) for c in of) % 2**64 for p in range(size)], dtype=np.uint64)
