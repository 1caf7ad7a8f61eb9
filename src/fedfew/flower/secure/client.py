"""A client in one round of masked aggregation.

    begin → share_keys → mask → reveal

Each step is taken once and in this order, whatever the server asks: what a step discloses is safe to disclose once, not twice.
Each step may run in another process, so a client can be serialised (:meth:`MaskingClient.dumps`); it must be saved before the
step's reply is sent.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedfew.flower.secure import ProtocolError, TooFewError, WeightError, keys, mask_stream, shamir
from fedfew.flower.secure.fixed_point import MIN_CLIENTS, UInt64Array

SHARED_BYTES = 2 * shamir.SHARE_BYTES + 8  # what a client shares with another: two shares, and its largest weight
STEPS = ("share_keys", "mask", "reveal", "nothing")  # what may come next


@dataclass(frozen=True)
class PublicKeys:
    """What a client makes known to all others."""

    channel: bytes  # to encrypt messages to it
    mask: bytes  # to agree on a mask with it
    commitment: bytes  # to the seed of its own mask, so that a wrong seed is noticed

    SIZE = 3 * keys.KEY_BYTES

    def dumps(self) -> bytes:
        return self.channel + self.mask + self.commitment

    @classmethod
    def loads(cls, data: bytes) -> PublicKeys:
        if len(data) != cls.SIZE:
            raise ProtocolError(f"public keys have {cls.SIZE} bytes, not {len(data)}")
        return cls(*(data[i : i + keys.KEY_BYTES] for i in range(0, cls.SIZE, keys.KEY_BYTES)))


def usual_threshold(clients: int) -> int:
    """More than two thirds: almost a third may drop out, and a server that sends clients different lists of survivors
    needs the help of a third of them."""
    return 2 * clients // 3 + 1


@dataclass
class MaskingClient:
    """The secrets of one client in one round, and which step comes next."""

    client: int
    session: bytes  # of this attempt at a round: keys of another one do not fit
    channel_key: bytes
    mask_key: bytes
    seed: bytes  # of the client's own mask, which stays secret where the server learns the masks of pairs
    most_weight: float = 1.0  # the largest fraction of a sum that this client allows for itself
    step: str = "share_keys"
    threshold: int = 0
    participants: dict[int, PublicKeys] = field(default_factory=dict)
    shares: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)  # per client: of its mask's seed, of its mask key
    limits: dict[int, float] = field(default_factory=dict)  # per client: its most_weight
    weights: list[float] = field(default_factory=list)  # by which this client has scaled its upload

    @classmethod
    def begin(cls, client: int, session: bytes, most_weight: float = 1.0) -> MaskingClient:
        return cls(client, session, keys.fresh(), keys.fresh(), keys.fresh(), most_weight)

    @property
    def public(self) -> PublicKeys:
        commitment = keys.commitment(self.seed, self.session)
        return PublicKeys(keys.public(self.channel_key), keys.public(self.mask_key), commitment)

    def share_keys(self, participants: Mapping[int, PublicKeys], threshold: int) -> dict[int, bytes]:
        """Shares of this client's secrets, encrypted for each of the other participants."""
        self._take("share_keys")
        if participants.get(self.client) != self.public:
            raise ProtocolError("the participants' keys do not contain this client's own")
        all_keys = [key for known in participants.values() for key in (known.channel, known.mask)]
        if len(set(all_keys)) < len(all_keys):
            raise ProtocolError("two of the participants' keys are the same")
        if len(participants) < MIN_CLIENTS:
            raise TooFewError(f"{len(participants)} clients are too few to hide among: {MIN_CLIENTS} are needed")
        if not len(participants) < 2 * threshold <= 2 * len(participants):
            raise ProtocolError(f"the threshold of {threshold} of {len(participants)} clients must be more than half, or the "
                                "server could get both secrets of a client from two halves")  # fmt: skip
        self.participants, self.threshold = dict(participants), threshold
        of_seed = shamir.split(self.seed, participants.keys(), threshold)
        of_key = shamir.split(self.mask_key, participants.keys(), threshold)
        self.shares = {self.client: (of_seed[self.client], of_key[self.client])}
        self.limits = {self.client: self.most_weight}
        limit = struct.pack("<d", self.most_weight)
        sealed = {}
        for other, known in participants.items():
            if other != self.client:
                text = of_seed[other] + of_key[other] + limit
                sealed[other] = keys.seal(self.channel_key, known.channel, self.session, self.client, other, text)
        return sealed

    def mask(self, values: UInt64Array, sealed: Mapping[int, bytes], weights: Sequence[float]) -> UInt64Array:
        """The values plus this client's own mask and the pair masks with each client whose encrypted shares are given.

        weights: by which the values were scaled, already divided by their sum over clients.
        """
        if not all(0 <= weight <= self.most_weight for weight in weights):
            raise WeightError(f"a weight of this client is not from 0 to {self.most_weight:g}, the most it allows")
        self._take("mask")
        self.weights = list(weights)
        if not sealed.keys() <= self.participants.keys() - {self.client}:
            raise ProtocolError("there are shares of clients that do not participate")
        if len(sealed) + 1 < self.threshold:
            raise TooFewError(f"{len(sealed) + 1} of {len(self.participants)} clients have shared their secrets, "
                              f"{self.threshold} are needed")  # fmt: skip
        for other, text in sealed.items():
            peer = self.participants[other].channel
            both = keys.unseal(self.channel_key, peer, self.session, other, self.client, text)
            if len(both) != SHARED_BYTES:
                raise ProtocolError(f"the encrypted shares of client {other} are damaged")
            self.shares[other] = (both[: shamir.SHARE_BYTES], both[shamir.SHARE_BYTES : 2 * shamir.SHARE_BYTES])
            (self.limits[other],) = struct.unpack("<d", both[2 * shamir.SHARE_BYTES :])
        masked = values.copy()
        mask_stream.add(masked, self.seed)
        for other in sealed:
            pair = keys.pair_seed(self.mask_key, self.participants[other].mask, self.session)
            mask_stream.add(masked, pair, subtract=other < self.client)
        return masked

    def reveal(self, survivors: Mapping[int, Sequence[float]]) -> dict[int, bytes]:
        """One share per client that has shared its secrets: of survivors that of their own mask's seed, of drop-outs that of
        their mask key. Never both of one client: this step is taken once, and a client is either a survivor or a drop-out.

        survivors: their weights. Where clients have dropped out, those left are a larger fraction of the sum. Any ``threshold``
        of clients can unmask it, so each of them checks the limits of all.
        """
        self._require("reveal")
        self._check_weights(survivors)
        self._take("reveal")
        if self.client not in survivors or not survivors.keys() <= self.shares.keys():
            raise ProtocolError("the survivors are not this client and others that have shared their secrets")
        if len(survivors) < self.threshold:
            raise TooFewError(f"{len(survivors)} clients have uploaded, {self.threshold} are needed to unmask their sum")
        return {other: of_seed if other in survivors else of_key for other, (of_seed, of_key) in self.shares.items()}

    def _check_weights(self, survivors: Mapping[int, Sequence[float]]) -> None:
        if self.client in survivors and list(survivors[self.client]) != self.weights:
            raise ProtocolError("the survivors' weights do not contain those by which this client scaled its upload")
        totals = [sum(column) for column in zip(*survivors.values(), strict=True)]
        for client, weights in survivors.items():
            for model, (weight, total) in enumerate(zip(weights, totals, strict=True)):
                limit = max(self.limits.get(client, 1.0), weight)  # a client that uploaded has accepted its weight as it was
                if weight > limit * total * (1 + 1e-9):
                    raise WeightError(
                        f"client {client} would be {weight / total:.3f} of the sum of model {model}, but allows {limit:g}"
                    )

    def _take(self, step: str) -> None:
        self._require(step)
        self.step = STEPS[STEPS.index(step) + 1]

    def _require(self, step: str) -> None:
        if self.step != step:
            raise ProtocolError(f"the server asks for '{step}', but this client's next step is '{self.step}': each is taken once")

    def dumps(self) -> str:
        """All of it as JSON. It contains secrets."""
        document: dict[str, Any] = {"client": self.client, "step": self.step, "threshold": self.threshold}
        document |= {"most_weight": self.most_weight, "weights": self.weights}
        document["limits"] = {str(client): limit for client, limit in self.limits.items()}
        document |= {name: getattr(self, name).hex() for name in ("session", "channel_key", "mask_key", "seed")}
        document["participants"] = {str(client): known.dumps().hex() for client, known in self.participants.items()}
        document["shares"] = {str(client): [share.hex() for share in both] for client, both in self.shares.items()}
        return json.dumps(document)

    @classmethod
    def loads(cls, text: str) -> MaskingClient:
        document = json.loads(text)
        secrets = {name: bytes.fromhex(document[name]) for name in ("session", "channel_key", "mask_key", "seed")}
        return cls(
            client=document["client"],
            step=document["step"],
            threshold=document["threshold"],
            most_weight=document["most_weight"],
            weights=document["weights"],
            limits={int(client): limit for client, limit in document["limits"].items()},
            participants={
                int(client): PublicKeys.loads(bytes.fromhex(known)) for client, known in document["participants"].items()
            },
            shares={int(client): (bytes.fromhex(a), bytes.fromhex(b)) for client, (a, b) in document["shares"].items()},
            **secrets,
        )
