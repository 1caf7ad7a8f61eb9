"""The two exchanges of a round: clients train, and clients score the aggregated models."""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedfew.flower import checks, wire
from fedfew.flower.checks import CheckedReply, Request
from fedfew.flower.deployment_config import DeploymentConfig
from fedfew.flower.dispatcher import Dispatcher
from fedfew.flower.messages import SCORE, TRAIN, ChangedError, RefusedError, RevealedError, SiteMessage
from fedfew.flower.registry import Registry
from fedfew.flower.server_state import ServerState
from fedfew.stack import tree_map
from fedfew.training import unseen
from fedfew.training.per_client import PerClient, some
from fedfew.training.scoring import ServedScores

if TYPE_CHECKING:
    from fedfew.flower.masked_round import MaskedRound


@dataclass(frozen=True)
class Exchanges:
    """Messages out, replies back, each reply checked; events say which replies were left out and why."""

    config: DeploymentConfig
    state: ServerState
    registry: Registry
    dispatcher: Dispatcher
    _log_event: Callable[[str], None]

    def train(
        self, number: int, scored: bool, sampled: Tensor, nodes: dict[int, int], masked: MaskedRound | None
    ) -> tuple[dict[int, CheckedReply], Tensor, int]:
        """One exchange: the usable replies by client, n_i / Σ_j n_j of every client, and the bytes sent out."""
        counts = torch.tensor([self.registry.members[nodes[i]].samples for i in sampled.tolist()])
        counts -= unseen.counts(counts, unseen.share(self.config, self.state.method))
        trained_on = dict(zip(sampled.tolist(), counts.tolist(), strict=True))
        sample_shares = torch.zeros(self.config.clients, dtype=torch.float64)
        sample_shares[sampled] = counts.double() / counts.sum()
        messages, requests = {}, {}
        for client, tree in self.state.dispatched(sampled).items():
            values = self.state.values(client, number) | {"sample_share": float(sample_shares[client]), "scored": scored}
            values |= masked.opening() if masked else {}
            messages[nodes[client]] = SiteMessage(TRAIN, values, tree)
            requests[nodes[client]] = Request(client, self.state.token, number, TRAIN, trained_on[client])
        like = replace(self.state.like, update={}) if masked else self.state.like  # masked updates come in a later step
        expected = wire.expected(tree_map(lambda t: t[0], like.update), self.config.compression)
        received = self.dispatcher.exchange(messages, expected)
        replies: dict[int, CheckedReply] = {}
        for node, request in requests.items():
            message = received[node]
            try:
                if isinstance(message, RefusedError):
                    raise message
                replies[request.client] = checks.check_reply(message, request, like, self.config.compression, self._lowest)
            except RefusedError as reason:
                if masked and isinstance(reason, RevealedError):
                    masked.already_revealed = True
                if isinstance(reason, ChangedError):
                    del self.registry.members[node]
                self._log_event(f"round {number}: client {request.client} is left out: {reason}")
        sent = {request.client: messages[node].tree for node, request in requests.items()}
        for client, outlier in checks.outliers(replies, self.config.refuse_ratio, sent).items():
            self._log_event(f"round {number}: client {client} is left out: {outlier}")
            del replies[client]
        for client, reply in replies.items():
            self._check_state_and_clip(number, client, reply)
        return dict(sorted(replies.items())), sample_shares, sum(message.bytes for message in messages.values())

    def _check_state_and_clip(self, number: int, client: int, reply: CheckedReply) -> None:
        if reply.started_from != self.state.sites["last"][client]:
            self._log_event(
                f"round {number}: client {client} had lost its private state and started from that of round {reply.started_from}"
            )
        before = reply.norm
        if checks.clip(reply, self.config.clip_norm):
            self._log_event(
                f"round {number}: client {client}'s update is shortened from {before:.3g} to {self.config.clip_norm:g}"
            )

    @property
    def _lowest(self) -> float:
        """The lowest score that there is: R² has none."""
        return -math.inf if self.state.data["task"] == "regression" else 0.0

    def score(self, number: int) -> PerClient:
        """An exchange with all clients present: which of the aggregated models each would use, and how well it scores."""
        scores, nodes = PerClient(self.config.clients), self.dispatcher.present()
        messages = {}
        final = number == self.config.rounds
        for client, tree in self.state.dispatched(torch.tensor(list(nodes), dtype=torch.int64), served=True).items():
            messages[nodes[client]] = SiteMessage(SCORE, self.state.values(client, number) | {"final": final}, tree)
        if final and len(nodes) < self.config.clients:
            self._log_event(f"round {number}: not there to choose and save a model: {missing(self.config.clients, nodes)}")
        received = self.dispatcher.exchange(messages, {})
        for client, node in nodes.items():
            message = received[node]
            try:
                if isinstance(message, RefusedError):
                    raise message
                checks.check_matches(message, Request(client, self.state.token, number, SCORE, 0))
                put_score(scores, client, checks.check_score(message, self.state.like.losses.shape[1], self._lowest))
            except RefusedError as reason:
                self._log_event(f"round {number}: client {client} is not scored: {reason}")
        scores.assign(self.state.method.assigned(self.state.state.served))
        return scores


def missing(clients: int, present: Container[int]) -> str:
    """Which of the clients are not among those present."""
    found = [i for i in range(clients) if i not in present]
    return f"clients {some(found)}" if len(found) > 1 else f"client {some(found)}"


def put_score(scores: PerClient, client: int, score: tuple[int, float, float] | None) -> None:
    if score is not None:
        choice, accuracy, loss = (torch.tensor([value]) for value in score)
        scores.put(torch.tensor([client]), ServedScores(choice, accuracy, loss))
