"""The server's half of a round under masks: three more waves after the one in which sites train (:mod:`fedfew.flower.secure`).
Experimental.

Losses and public keys have come with the first wave. Who does not answer a later one has dropped out, and the round goes on with
the others as long as they are enough; it ends with the weighted mean over those who uploaded, and no update of any one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedfew.flower import checks
from fedfew.flower.checks import Answer, Asked
from fedfew.flower.dispatcher import Post
from fedfew.flower.masked_site import as_rows, as_tensor
from fedfew.flower.messages import MASK, REVEAL, SHARE, Letter, RefusedError, Spec, Specs
from fedfew.flower.secure import ProtocolError, shamir
from fedfew.flower.secure.client import PublicKeys
from fedfew.flower.secure.fixed_point import Ring
from fedfew.flower.secure.server import SEALED, Adder
from fedfew.flower.secure.weighting import Weights, numbers_in
from fedfew.methods import Reply
from fedfew.stack import Tree, take, tensor
from fedfew.training.aggregation import Aggregation

NEARLY_ALONE = 0.9  # a client with more of a model's weight than this hardly hides in the sum


class MaskedRound:
    """One attempt at a round: :meth:`opening` goes with the letters of the first wave, :meth:`finish` does the rest."""

    def __init__(
        self, like: Reply, asked: Asked, clip: float, nodes: Mapping[int, int], post: Post, note: Callable[[str], None]
    ) -> None:
        if not like.update:
            raise ValueError("aggregation = 'masked' has nothing to mask: the method's clients send no updates. Use 'plain'")
        self.like: Tree = take(like.update, 0)
        self.models = like.losses.shape[1]
        self.asked, self.number, self.clip = asked, asked.round, clip
        self.nodes, self.post, self._note = nodes, post, note
        self.adder = Adder(numbers_in(self.like, self.models))
        self.bytes_down = self.bytes_up = 0

    def opening(self) -> dict[str, Any]:
        """What a site has to know from the first wave on."""
        return {"session": self.adder.session.hex()}

    def finish(self, collected: Aggregation, answers: Mapping[int, Answer]) -> None:
        """Carry a round through for those who trained; where too many drop out it is noted, and nothing is collected."""
        try:
            self._share(answers)
            weights = self._weights(collected, answers)
            self._mask(weights)
            self._reveal()
            ring = Ring(self.clip, len(self.adder.roster))
            mean, lost = weights.mean(ring.decode(self.adder.unmask()), self.adder.survivors, self.like, ring)
        except ProtocolError as reason:
            self._note(f"round {self.number}: {reason}")
            return
        for model in lost:
            self._note(f"round {self.number}: model {model} stays as it is: those with nearly all of its weight dropped out")
        for client in sorted(self.adder.survivors):
            reply = answers[client].reply
            collected.add(torch.tensor([client]), Reply({}, reply.losses, reply.samples))
        collected.add_mean(mean)

    def _share(self, answers: Mapping[int, Answer]) -> None:
        for client, answer in answers.items():
            try:
                self.adder.join(client, PublicKeys.loads(bytes.fromhex(answer.letter.text("keys"))))
            except ValueError as reason:
                self._left_out(client, reason)
        self.adder.close()
        everyone = sorted(self.adder.roster)
        known: Tree = {"keys": as_tensor([self.adder.roster[client].dumps() for client in everyone])}
        values = {"clients": everyone, "threshold": self.adder.threshold}
        letters = {client: Letter(SHARE, self._values() | values, known) for client in everyone}
        expected = {"sealed": Spec((len(everyone) - 1, SEALED), torch.uint8)}
        for client, letter in self._wave(letters, expected):
            others = [other for other in everyone if other != client]
            self.adder.share(client, dict(zip(others, as_rows(tensor(letter.tree, "sealed")), strict=True)))

    def _weights(self, collected: Aggregation, answers: Mapping[int, Answer]) -> Weights:
        """ω of those who have shared their secrets, by the losses that they all reported."""
        clients = sorted(self.adder.pass_on())
        at = torch.tensor(clients)
        losses = torch.cat([answers[client].reply.losses for client in clients])
        samples = torch.cat([answers[client].reply.samples for client in clients])
        weights = Weights.of(collected.method, clients, losses, samples, collected.share[at])
        most, who = weights.normalised.max(0)
        if float(most.max()) > NEARLY_ALONE:
            model = int(most.argmax())
            self._note(
                f"round {self.number}: client {clients[int(who[model])]} has {100 * float(most.max()):.0f} % of the weight of "
                f"model {model}, so that the masked sum tells nearly all of its update of it"
            )
        return weights

    def _mask(self, weights: Weights) -> None:
        letters = {}
        omega = dict(zip(weights.clients, weights.normalised.tolist(), strict=True))
        for client, sealed in self.adder.pass_on().items():
            others = sorted(sealed)
            values = {"clients": others, "weights": omega[client], "models": self.models, "clip": self.clip}
            letters[client] = Letter(MASK, self._values() | values, {"sealed": as_tensor([sealed[other] for other in others])})
        expected = {"masked": Spec((self.adder.size,), torch.int64)}
        for client, letter in self._wave(letters, expected):
            self.adder.upload(client, tensor(letter.tree, "masked").numpy().view(np.uint64))

    def _reveal(self) -> None:
        shared, survivors = sorted(self.adder.pass_on()), sorted(self.adder.survivors)
        letters = {client: Letter(REVEAL, self._values() | {"clients": survivors}) for client in survivors}
        expected = {"shares": Spec((len(shared), shamir.SHARE), torch.uint8)}
        for client, letter in self._wave(letters, expected):
            self.adder.reveal(client, dict(zip(shared, as_rows(tensor(letter.tree, "shares")), strict=True)))

    def _wave(self, letters: Mapping[int, Letter], expected: Specs) -> Iterable[tuple[int, Letter]]:
        """Post letters by client; the usable answers."""
        came = self.post.wave({self.nodes[client]: letter for client, letter in letters.items()}, expected)
        for client, sent in letters.items():
            self.bytes_down += sent.bytes
            try:
                letter = came.get(self.nodes[client], RefusedError("no answer within the deadline"))
                if isinstance(letter, RefusedError):
                    raise letter
                checks.check_answer(letter, replace(self.asked, client=client, kind=sent.kind))
            except RefusedError as reason:
                self._left_out(client, reason)
                continue
            self.bytes_up += letter.bytes
            yield client, letter

    def _values(self) -> dict[str, Any]:
        return {"run": self.asked.run, "round": self.number, "session": self.adder.session.hex()}

    def _left_out(self, client: int, reason: Exception) -> None:
        self._note(f"round {self.number}: client {client} is left out: {reason}")
