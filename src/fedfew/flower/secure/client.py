"""A client in one round of masked aggregation.

    begin → share → mask → reveal

Each step is taken once and in this order, whatever the server asks: what a step gives away is safe once, not twice. A client's
process may be another one for each step, so a party can be written down (:meth:`Party.dumps`) and read back; it must be written
down before the step's answer leaves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from fedfew.flower.secure import ProtocolError, TooFewError, keys, mask_stream, shamir
from fedfew.flower.secure.fixed_point import FEWEST, Whole

STEPS = ("share", "mask", "reveal", "nothing")  # what may come next


@dataclass(frozen=True)
class PublicKeys:
    """What a client tells everybody."""

    channel: bytes  # to seal letters to it
    mask: bytes  # to agree on a mask with it
    commitment: bytes  # to the seed of its own mask, so that a wrong one is noticed

    SIZE = 3 * keys.KEY

    def dumps(self) -> bytes:
        return self.channel + self.mask + self.commitment

    @classmethod
    def loads(cls, data: bytes) -> PublicKeys:
        if len(data) != cls.SIZE:
            raise ProtocolError(f"public keys have {cls.SIZE} bytes, not {len(data)}")
        return cls(*(data[i : i + keys.KEY] for i in range(0, cls.SIZE, keys.KEY)))


def usual_threshold(clients: int) -> int:
    """More than two thirds: almost a third may drop out, and a server that tells clients different stories needs a third of them
    on its side."""
    return 2 * clients // 3 + 1


@dataclass
class Party:
    """The secrets of one client in one round, and which step comes next."""

    client: int
    session: bytes  # the round's own name: keys and letters of another round do not fit
    channel_key: bytes
    mask_key: bytes
    seed: bytes  # of the client's own mask, which outlasts the pairs' masks where the server gets those
    step: str = "share"
    threshold: int = 0
    roster: dict[int, PublicKeys] = field(default_factory=dict)
    shares: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)  # by client: of its own mask's seed, of its mask key

    @classmethod
    def begin(cls, client: int, session: bytes) -> Party:
        return cls(client, session, keys.fresh(), keys.fresh(), keys.fresh())

    @property
    def public(self) -> PublicKeys:
        commitment = keys.commitment(self.seed, self.session)
        return PublicKeys(keys.public(self.channel_key), keys.public(self.mask_key), commitment)

    def share(self, roster: Mapping[int, PublicKeys], threshold: int) -> dict[int, bytes]:
        """This client's secrets in shares, sealed, for each of the others on the roster."""
        self._take("share")
        if roster.get(self.client) != self.public:
            raise ProtocolError("the roster has other keys of this client than its own")
        everything = [key for known in roster.values() for key in (known.channel, known.mask)]
        if len(set(everything)) < len(everything):
            raise ProtocolError("two keys on the roster are the same")
        if len(roster) < FEWEST:
            raise TooFewError(f"{len(roster)} clients are too few to hide among: {FEWEST} are wanted")
        if not len(roster) < 2 * threshold <= 2 * len(roster):
            raise ProtocolError(f"a threshold of {threshold} of {len(roster)} clients: it must be more than half of them, or the "
                                "server could get both secrets of a client from two halves")  # fmt: skip
        self.roster, self.threshold = dict(roster), threshold
        of_seed = shamir.split(self.seed, roster.keys(), threshold)
        of_key = shamir.split(self.mask_key, roster.keys(), threshold)
        self.shares = {self.client: (of_seed[self.client], of_key[self.client])}
        return {
            other: keys.seal(self.channel_key, known.channel, self.session, self.client, other, of_seed[other] + of_key[other])
            for other, known in roster.items()
            if other != self.client
        }

    def mask(self, values: Whole, sealed: Mapping[int, bytes]) -> Whole:
        """The values under this client's own mask and those it has in common with each whose sealed shares came."""
        self._take("mask")
        if not sealed.keys() <= self.roster.keys() - {self.client}:
            raise ProtocolError("there are shares of clients that are not on the roster")
        if len(sealed) + 1 < self.threshold:
            raise TooFewError(f"{len(sealed) + 1} of {len(self.roster)} clients have shared their secrets, "
                              f"{self.threshold} are needed")  # fmt: skip
        for other, letter in sealed.items():
            peer = self.roster[other].channel
            text = keys.unseal(self.channel_key, peer, self.session, other, self.client, letter)
            if len(text) != 2 * shamir.SHARE:
                raise ProtocolError(f"the sealed shares of client {other} are damaged")
            self.shares[other] = (text[: shamir.SHARE], text[shamir.SHARE :])
        masked = values.copy()
        mask_stream.add(masked, self.seed)
        for other in sealed:
            pair = keys.seed_of_pair(self.mask_key, self.roster[other].mask, self.session)
            mask_stream.add(masked, pair, subtract=other < self.client)
        return masked

    def reveal(self, survivors: Set[int]) -> dict[int, bytes]:
        """For each client that has shared its secrets one of the two: of survivors the share of their own mask's seed, of those
        who dropped out the share of their mask key. Never both: this is asked once, and a client is either the one or the other.
        """
        self._take("reveal")
        if self.client not in survivors or not survivors <= self.shares.keys():
            raise ProtocolError("the survivors are not this client and others that have shared their secrets")
        if len(survivors) < self.threshold:
            raise TooFewError(f"{len(survivors)} clients have uploaded, {self.threshold} are needed to unmask their sum")
        return {other: of_seed if other in survivors else of_key for other, (of_seed, of_key) in self.shares.items()}

    def _take(self, step: str) -> None:
        if self.step != step:
            raise ProtocolError(f"'{step}' was asked for, but this client's next step is '{self.step}': each is taken once")
        self.step = STEPS[STEPS.index(step) + 1]

    def dumps(self) -> str:
        """All of it as JSON: secrets, to be kept from everyone else."""
        document: dict[str, Any] = {"client": self.client, "step": self.step, "threshold": self.threshold}
        document |= {name: getattr(self, name).hex() for name in ("session", "channel_key", "mask_key", "seed")}
        document["roster"] = {str(client): known.dumps().hex() for client, known in self.roster.items()}
        document["shares"] = {str(client): [share.hex() for share in both] for client, both in self.shares.items()}
        return json.dumps(document)

    @classmethod
    def loads(cls, text: str) -> Party:
        document = json.loads(text)
        secrets = {name: bytes.fromhex(document[name]) for name in ("session", "channel_key", "mask_key", "seed")}
        return cls(
            client=document["client"],
            step=document["step"],
            threshold=document["threshold"],
            roster={int(client): PublicKeys.loads(bytes.fromhex(known)) for client, known in document["roster"].items()},
            shares={int(client): (bytes.fromhex(a), bytes.fromhex(b)) for client, (a, b) in document["shares"].items()},
            **secrets,
        )
