"""The server in one round of masked aggregation: it forwards encrypted shares, adds masked updates, and unmasks the sum.

    join, close → add_shares, forwarded_shares → upload, survivors → reveal, unmask

A client that is missing after a step has dropped out. With fewer clients left than the threshold nothing is unmasked.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

import numpy as np

from fedfew.flower.secure import ProtocolError, TooFewError, keys, mask_stream, shamir
from fedfew.flower.secure.client import SHARED_BYTES, PublicKeys, usual_threshold
from fedfew.flower.secure.fixed_point import MIN_CLIENTS, UInt64Array

SEALED_BYTES = keys.NONCE_BYTES + SHARED_BYTES + keys.TAG_BYTES  # what one client sends another, encrypted


class MaskingServer:
    """What the server knows in one round."""

    def __init__(self, size: int) -> None:
        self.session = secrets.token_bytes(16)
        self.size = size  # numbers that each client uploads
        self.participants: dict[int, PublicKeys] = {}
        self.threshold = 0
        self.uploaded: set[int] = set()
        self._total: UInt64Array = np.zeros(size, dtype=np.uint64)
        self._sealed: dict[int, Mapping[int, bytes]] = {}
        self._revealed: dict[int, Mapping[int, bytes]] = {}

    def join(self, client: int, public: PublicKeys) -> None:
        """Add a client's public keys. Invalid ones are refused here, as every other client would refuse to continue."""
        if client in self.participants:
            raise ProtocolError(f"client {client} has joined already")
        taken = {key for known in self.participants.values() for key in (known.channel, known.mask)}
        if public.channel == public.mask or taken & {public.channel, public.mask}:
            raise ProtocolError("its keys are not new and different")
        for key in (public.channel, public.mask):
            keys.pair_seed(keys.fresh(), key, self.session)  # raises for an invalid key
        self.participants[client] = public

    def close(self) -> None:
        """No client may join any more."""
        if len(self.participants) < MIN_CLIENTS:
            raise TooFewError(
                f"masked aggregation needs at least {MIN_CLIENTS} clients in a round, {len(self.participants)} replied"
            )
        self.threshold = usual_threshold(len(self.participants))

    def add_shares(self, client: int, sealed: Mapping[int, bytes]) -> None:
        """A client's shares for all other participants, which the server cannot read."""
        if client not in self.participants or sealed.keys() != self.participants.keys() - {client}:
            raise ProtocolError(f"the shares of client {client} are not for all others")
        if any(len(text) != SEALED_BYTES for text in sealed.values()):
            raise ProtocolError(f"the shares of client {client} have a wrong size")
        self._sealed[client] = dict(sealed)

    def forwarded_shares(self) -> dict[int, dict[int, bytes]]:
        """Per client that has shared its secrets, the encrypted shares of the others that have."""
        self._enough(len(self._sealed), "shared their secrets")
        return {to: {by: texts[to] for by, texts in self._sealed.items() if by != to} for to in self._sealed}

    def upload(self, client: int, masked: UInt64Array) -> None:
        """Add a client's masked numbers to the sum; they are not stored."""
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
        """The clients whose numbers are in the sum; too few are an error."""
        self._enough(len(self.uploaded), "uploaded")
        return set(self.uploaded)

    def reveal(self, client: int, shares: Mapping[int, bytes]) -> None:
        """A survivor's shares: of each survivor's own mask, of each drop-out's mask key."""
        if client not in self.uploaded or client in self._revealed:
            raise ProtocolError(f"client {client} has revealed already, or has not uploaded")
        if shares.keys() != self._sealed.keys() or any(len(share) != shamir.SHARE_BYTES for share in shares.values()):
            raise ProtocolError(f"client {client} has not revealed a share for each client")
        self._revealed[client] = dict(shares)

    def unmask(self) -> UInt64Array:
        """The sum of the survivors' numbers."""
        survivors = self.survivors
        self._enough(len(self._revealed), "revealed their shares")
        total = self._total.copy()
        for client in survivors:
            seed = self._secret(client)
            if keys.commitment(seed, self.session) != self.participants[client].commitment:
                raise ProtocolError(f"the shares of client {client}'s own mask are wrong: nothing is unmasked")
            mask_stream.add(total, seed, subtract=True)
        for dropped in self._sealed.keys() - survivors:
            private = self._secret(dropped)
            if keys.public(private) != self.participants[dropped].mask:
                raise ProtocolError(f"the shares of client {dropped}'s mask key are wrong: nothing is unmasked")
            for client in survivors:  # whose uploads still contain this pair's mask
                pair = keys.pair_seed(private, self.participants[client].mask, self.session)
                mask_stream.add(total, pair, subtract=client < dropped)
        return total

    def _secret(self, client: int) -> bytes:
        try:
            return shamir.combine({by: shares[client] for by, shares in self._revealed.items()}, self.threshold)
        except ValueError:
            raise ProtocolError(f"the shares of client {client}'s secret do not fit together: nothing is unmasked") from None

    def _enough(self, count: int, did: str) -> None:
        if not self.threshold:
            raise ProtocolError("clients may still join")
        if count < self.threshold:
            raise TooFewError(
                f"{count} of {len(self.participants)} clients {did}, but {self.threshold} are needed: nothing is unmasked"
            )
