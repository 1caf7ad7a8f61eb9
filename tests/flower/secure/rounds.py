"""A whole round of the protocol in one process, with drop-outs where a test wants them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedfew.flower.secure.client import Party
from fedfew.flower.secure.fixed_point import Whole
from fedfew.flower.secure.server import Adder


class Round:
    """Clients 0, 1, …, each with whole numbers of its own; ``absent`` says after which step a client is gone.

    Steps are "share", "mask" and "reveal"; a client that is absent from one takes no later step. Parties are written down and
    read back between any two steps, as they are at a site.
    """

    def __init__(self, values: Mapping[int, Whole], absent: Mapping[int, str] | None = None) -> None:
        self.values, self.absent = values, dict(absent or {})
        self.adder = Adder(len(next(iter(values.values()))))
        self._written: dict[int, str] = {}
        self.uploads: dict[int, Whole] = {}

    def party(self, client: int) -> Party:
        return Party.loads(self._written[client])

    def keep(self, party: Party) -> None:
        self._written[party.client] = party.dumps()

    def there(self, step: str) -> list[int]:
        steps = ["share", "mask", "reveal"]
        gone = {client for client, at in self.absent.items() if steps.index(at) <= steps.index(step)}
        return [client for client in self.values if client not in gone]

    def begin(self) -> None:
        for client in self.values:
            party = Party.begin(client, self.adder.session)
            self.adder.join(client, party.public)
            self.keep(party)
        self.adder.close()

    def share(self) -> None:
        for client in self.there("share"):
            party = self.party(client)
            self.adder.share(client, party.share(self.adder.roster, self.adder.threshold))
            self.keep(party)

    def mask(self) -> None:
        letters = self.adder.pass_on()
        for client in self.there("mask"):
            party = self.party(client)
            self.uploads[client] = party.mask(self.values[client], letters[client])
            self.adder.upload(client, self.uploads[client])
            self.keep(party)

    def reveal(self) -> None:
        survivors = self.adder.survivors
        for client in self.there("reveal"):
            party = self.party(client)
            self.adder.reveal(client, party.reveal(survivors))
            self.keep(party)

    def run(self) -> Whole:
        self.begin()
        self.share()
        self.mask()
        self.reveal()
        return self.adder.unmask()


def random_values(clients: int, size: int, seed: int = 0) -> dict[int, Whole]:
    draw = np.random.default_rng(seed)
    return {client: draw.integers(0, 2**64, size, dtype=np.uint64) for client in range(clients)}


def plain_sum(values: Mapping[int, Whole], of: list[int]) -> Whole:
    """By Python's own whole numbers."""
    size = len(next(iter(values.values())))
    return np.array([sum(int(values[c][p]) for c in of) % 2**64 for p in range(size)], dtype=np.uint64)
