"""The server in one round of masked aggregation: it passes letters on, adds up, and unmasks the sum.

    join, close → share, pass_on → upload, survivors → reveal, unmask

Whoever is missing after a step has dropped out. With fewer left than the threshold the round is lost, and nothing is unmasked.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

import numpy as np

from fedfew.flower.secure import ProtocolError, TooFewError, keys, mask_stream, shamir
from fedfew.flower.secure.client import PublicKeys, usual_threshold
from fedfew.flower.secure.fixed_point import FEWEST, Whole

SEALED = keys.NONCE + 2 * shamir.SHARE + keys.TAG  # bytes of a sealed pair of shares


class Adder:
    """What the server knows in one round."""

    def __init__(self, size: int) -> None:
        self.session = secrets.token_bytes(16)
        self.size = size  # how many numbers each client uploads
        self.roster: dict[int, PublicKeys] = {}
        self.threshold = 0
        self.uploaded: set[int] = set()
        self._total: Whole = np.zeros(size, dtype=np.uint64)
        self._sealed: dict[int, Mapping[int, bytes]] = {}
        self._revealed: dict[int, Mapping[int, bytes]] = {}

    def join(self, client: int, public: PublicKeys) -> None:
        """A client's keys, in the first step; with bad ones no other client would go on."""
        if client in self.roster:
            raise ProtocolError(f"client {client} has joined already")
        taken = {key for known in self.roster.values() for key in (known.channel, known.mask)}
        if public.channel == public.mask or taken & {public.channel, public.mask}:
            raise ProtocolError("its keys are in use already")
        for key in (public.channel, public.mask):
            keys.seed_of_pair(keys.fresh(), key, self.session)  # raises where it is no key
        self.roster[client] = public

    def close(self) -> None:
        """No more clients: this is the roster."""
        if len(self.roster) < FEWEST:
            raise TooFewError(f"masked aggregation needs at least {FEWEST} clients in a round, {len(self.roster)} answered")
        self.threshold = usual_threshold(len(self.roster))

    def share(self, client: int, sealed: Mapping[int, bytes]) -> None:
        """A client's shares for all others on the roster, which the server cannot read."""
        if client not in self.roster or sealed.keys() != self.roster.keys() - {client}:
            raise ProtocolError(f"the shares of client {client} are not for all others")
        if any(len(letter) != SEALED for letter in sealed.values()):
            raise ProtocolError(f"the shares of client {client} have another size than shares have")
        self._sealed[client] = dict(sealed)

    def pass_on(self) -> dict[int, dict[int, bytes]]:
        """For each client that has shared its secrets the letters of the others that did."""
        self._enough(len(self._sealed), "shared their secrets")
        return {to: {by: letters[to] for by, letters in self._sealed.items() if by != to} for to in self._sealed}

    def upload(self, client: int, masked: Whole) -> None:
        """Add a client's masked numbers to the sum; they are not kept."""
        if client not in self._sealed or client in self.uploaded:
            raise ProtocolError(f"client {client} has uploaded already, or has not shared its secrets")
        if masked.shape != (self.size,) or masked.dtype != np.uint64:
            raise ProtocolError(
                f"client {client} uploaded {masked.dtype} of shape {list(masked.shape)}, not [{self.size}] of uint64"
            )
        self._total += masked
        self.uploaded.add(client)

    @property
    def survivors(self) -> set[int]:
        """Those whose numbers are in the sum; checked to be enough."""
        self._enough(len(self.uploaded), "uploaded")
        return set(self.uploaded)

    def reveal(self, client: int, shares: Mapping[int, bytes]) -> None:
        """A surviving client's shares: of each survivor's own mask, of each drop-out's mask key."""
        if client not in self.uploaded or client in self._revealed:
            raise ProtocolError(f"client {client} has revealed already, or has not uploaded")
        if shares.keys() != self._sealed.keys() or any(len(share) != shamir.SHARE for share in shares.values()):
            raise ProtocolError(f"client {client} has not revealed a share for each client")
        self._revealed[client] = dict(shares)

    def unmask(self) -> Whole:
        """The sum of the survivors' numbers."""
        survivors = self.survivors
        self._enough(len(self._revealed), "revealed their shares")
        total = self._total.copy()
        for client in survivors:
            seed = self._secret(client)
            if keys.commitment(seed, self.session) != self.roster[client].commitment:
                raise ProtocolError(f"the shares of client {client}'s own mask are wrong: nothing is unmasked")
            mask_stream.add(total, seed, subtract=True)
        for dropped in self._sealed.keys() - survivors:
            private = self._secret(dropped)
            if keys.public(private) != self.roster[dropped].mask:
                raise ProtocolError(f"the shares of client {dropped}'s mask key are wrong: nothing is unmasked")
            for client in survivors:  # who added this mask, or took it away, in vain
                pair = keys.seed_of_pair(private, self.roster[client].mask, self.session)
                mask_stream.add(total, pair, subtract=client < dropped)
        return total

    def _secret(self, client: int) -> bytes:
        try:
            return shamir.combine({by: shares[client] for by, shares in self._revealed.items()}, self.threshold)
        except ValueError:
            raise ProtocolError(f"the shares of client {client}'s secret do not belong together: nothing is unmasked") from None

    def _enough(self, count: int, did: str) -> None:
        if not self.threshold:
            raise ProtocolError("the roster is not closed yet")
        if count < self.threshold:
            raise TooFewError(
                f"{count} of {len(self.roster)} clients {did}, but {self.threshold} are needed: nothing is unmasked"
            )
