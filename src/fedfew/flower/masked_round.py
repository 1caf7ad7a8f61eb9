"""The server's side of masked aggregation: three more exchanges after the one in which sites train
(:mod:`fedfew.flower.secure`). Experimental.

Losses and public keys have come with the first exchange. A client that does not answer a later one has dropped out, and the
round continues with the others as long as they are enough; it ends with the weighted mean over those that uploaded, and without
any single client's update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedfew.flower import checks
from fedfew.flower.checks import CheckedReply, Request
from fedfew.flower.dispatcher import Dispatcher
from fedfew.flower.messages import MASK, REVEAL, SHARE_KEYS, RefusedError, SiteMessage, Spec, Specs
from fedfew.flower.pending_update import as_rows, as_tensor
from fedfew.flower.secure import ProtocolError, shamir
from fedfew.flower.secure.client import PublicKeys
from fedfew.flower.secure.fixed_point import FixedPoint
from fedfew.flower.secure.server import SEALED_BYTES, MaskingServer
from fedfew.flower.secure.weighting import Weights, numbers_in
from fedfew.methods import Reply
from fedfew.stack import Tree, take, tensor
from fedfew.training.aggregation import Aggregation

WARN_WEIGHT = 0.9  # a client with more of a model's weight than this is hardly hidden by the sum


class MaskedRound:
    """One attempt at a round: :meth:`opening` is sent with the training messages, :meth:`finish` does the rest."""

    def __init__(
        self,
        like: Reply,
        request: Request,
        clip: float,
        nodes: Mapping[int, int],
        dispatcher: Dispatcher,
        log_event: Callable[[str], None],
    ) -> None:
        if not like.update:
            raise ValueError("aggregation = 'masked' has nothing to mask: the method's clients send no updates. Use 'plain'")
        self.like: Tree = take(like.update, 0)
        self.models = like.losses.shape[1]
        self.request, self.number, self.clip = request, request.round, clip
        self.nodes, self.dispatcher, self._log_event = nodes, dispatcher, log_event
        self.server = MaskingServer(numbers_in(self.like, self.models))
        self.bytes_down = self.bytes_up = 0
        self.already_revealed = False  # whether a site refuses because it has revealed its shares of this round

    def opening(self) -> dict[str, Any]:
        """The values that a site needs from the training message on."""
        return {"session": self.server.session.hex()}

    def finish(self, aggregation: Aggregation, replies: Mapping[int, CheckedReply], quorum: int) -> None:
        """Take the steps after training; where too many clients drop out it is logged, and nothing is aggregated.

        Sites reveal shares for a round once only, since the difference of two sums would be a single update. So a quorum is
        required before shares are asked for, and from then on the round counts: if the sum cannot be unmasked, the models stay as
        they are.
        """
        try:
            self._share_keys(replies)
            weights = self._weights(aggregation, replies)
            self._mask(weights)
            survivors = self.server.survivors
        except ProtocolError as reason:
            self._log_event(f"round {self.number}: {reason}")
            return
        if len(survivors) < quorum:
            self._log_event(f"round {self.number}: {len(survivors)} clients uploaded, {quorum} are a quorum: nothing is unmasked")
            return
        for client in sorted(survivors):
            reply = replies[client].reply
            aggregation.add(torch.tensor([client]), replace(reply, update={}))
        try:
            self._reveal(weights)
            fixed_point = FixedPoint(self.clip, len(self.server.participants))
            mean, lost = weights.mean(fixed_point.decode(self.server.unmask()), survivors, self.like, fixed_point)
        except ProtocolError as reason:
            self._log_event(f"round {self.number}: {reason}. Sites reveal shares once per round: the models stay as they are")
            return
        for column in lost:
            part = f"model {column}" if column < self.models else "the part that models have in common"
            self._log_event(f"round {self.number}: {part} stays as it is: the clients with nearly all of its weight dropped out")
        aggregation.add_mean(mean)

    def _share_keys(self, replies: Mapping[int, CheckedReply]) -> None:
        for client, reply in replies.items():
            try:
                self.server.join(client, PublicKeys.loads(bytes.fromhex(reply.message.text("keys"))))
            except ValueError as reason:
                self._log_left_out(client, reason)
        self.server.close()
        everyone = sorted(self.server.participants)
        keys: Tree = {"keys": as_tensor([self.server.participants[client].dumps() for client in everyone])}
        values = {"clients": everyone, "threshold": self.server.threshold}
        messages = {client: SiteMessage(SHARE_KEYS, self._header() | values, keys) for client in everyone}
        expected = {"sealed": Spec((len(everyone) - 1, SEALED_BYTES), torch.uint8)}

        def add_shares(client: int, message: SiteMessage) -> None:
            others = [other for other in everyone if other != client]
            self.server.add_shares(client, dict(zip(others, as_rows(tensor(message.tree, "sealed")), strict=True)))

        self._exchange(messages, expected, add_shares)

    def _weights(self, aggregation: Aggregation, replies: Mapping[int, CheckedReply]) -> Weights:
        """ω of the clients that have shared their secrets, from the losses that they reported."""
        clients = sorted(self.server.forwarded_shares())
        at = torch.tensor(clients)
        losses = aggregation.weights.counted(torch.cat([replies[client].reply.losses for client in clients]))
        samples = torch.cat([replies[client].reply.samples for client in clients])
        weights = Weights.of(aggregation.method, clients, losses, samples, aggregation.share[at], self.like)
        weights = weights.scaled(aggregation.weights.log_factors(weights.log_alpha, at))
        largest, who = weights.normalised.max(0)
        if float(largest.max()) > WARN_WEIGHT:
            column = int(largest.argmax())
            part = f"model {column}" if column < self.models else "the part that models have in common"
            self._log_event(
                f"round {self.number}: client {clients[int(who[column])]} has {100 * float(largest.max()):.0f} % of the weight "
                f"of {part}, so that the masked sum reveals nearly all of its update of it"
            )
        return weights

    def _mask(self, weights: Weights) -> None:
        messages = {}
        omega = dict(zip(weights.clients, weights.normalised.tolist(), strict=True))
        for client, sealed in self.server.forwarded_shares().items():
            others = sorted(sealed)
            values = {"clients": others, "weights": omega[client], "models": self.models, "clip": self.clip}
            shares: Tree = {"sealed": as_tensor([sealed[other] for other in others])}
            messages[client] = SiteMessage(MASK, self._header() | values, shares)
        expected = {"masked": Spec((self.server.size,), torch.int64)}

        def upload(client: int, message: SiteMessage) -> None:
            self.server.upload(client, tensor(message.tree, "masked").numpy().view(np.uint64))

        self._exchange(messages, expected, upload)

    def _reveal(self, weights: Weights) -> None:
        shared, survivors = sorted(self.server.forwarded_shares()), sorted(self.server.survivors)
        rows = weights.normalised[torch.tensor([weights.clients.index(client) for client in survivors])]
        tree: Tree = {"weights": rows}
        messages = {client: SiteMessage(REVEAL, self._header() | {"clients": survivors}, tree) for client in survivors}
        expected = {"shares": Spec((len(shared), shamir.SHARE_BYTES), torch.uint8)}

        def reveal(client: int, message: SiteMessage) -> None:
            self.server.reveal(client, dict(zip(shared, as_rows(tensor(message.tree, "shares")), strict=True)))

        self._exchange(messages, expected, reveal)

    def _exchange(self, messages: Mapping[int, SiteMessage], expected: Specs, use: Callable[[int, SiteMessage], None]) -> None:
        """Send messages by client and use the replies; a client whose reply cannot be used is left out."""
        received = self.dispatcher.exchange({self.nodes[client]: message for client, message in messages.items()}, expected)
        for client, sent in messages.items():
            self.bytes_down += sent.bytes
            message = received[self.nodes[client]]
            try:
                if isinstance(message, RefusedError):
                    raise message
                checks.check_matches(message, replace(self.request, client=client, kind=sent.kind))
                use(client, message)
            except (RefusedError, ProtocolError) as reason:
                if sent.kind == REVEAL:
                    self._log_event(f"round {self.number}: client {client} does not reveal its shares: {reason}")
                else:
                    self._log_left_out(client, reason)
                continue
            self.bytes_up += message.bytes

    def _header(self) -> dict[str, Any]:
        return {"run": self.request.run, "round": self.number, "session": self.server.session.hex()}

    def _log_left_out(self, client: int, reason: Exception) -> None:
        self._log_event(f"round {self.number}: client {client} is left out: {reason}")
