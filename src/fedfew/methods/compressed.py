"""Compression around another method: what the server gets is what a compressed update leaves of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedfew.local import Local
from fedfew.methods import compression
from fedfew.methods.base import Fresh, Method, Outcome, Reply
from fedfew.stack import Tree, WeightedMean, branch, bytes_each, named_leaves, tree_map


@dataclass
class Compressed(Reply):
    """A reply as it arrives, and the bytes it travelled as."""

    bytes_sent: int = 0

    @property
    def bytes_each(self) -> int:
        return self.bytes_sent


@dataclass(frozen=True)
class WithCompression(Method):
    """A method whose clients send their updates compressed (:mod:`fedfew.methods.compression`); all else is as the method says.

    With feedback for methods whose updates look like what they send out: FedFew, FedAvg, FedProx, not IFCA. It is no method by
    itself; on a network the same is had by ``compression = "int8"``.
    """

    method: Method
    way: compression.Way
    feedback: bool = True
    """Whether a client adds what was lost in one round to its update of the next."""

    def __post_init__(self) -> None:
        for word in ("name", "served", "adapted", "notes"):  # it goes by the name of what it is wrapped around
            object.__setattr__(self, word, getattr(self.method, word))

    def check_against(self, clients: int) -> None:
        self.method.check_against(clients)

    @property
    def replicas(self) -> int:
        return self.method.replicas

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        server, own = self.method.init(fresh, clients)
        lost: Tree = {}
        if self.feedback:
            sent_out = self.method.dispatch(server, torch.tensor([0]))
            lost = tree_map(lambda t: t.new_zeros(clients, *t.shape[1:]), sent_out)
        return server, {"own": own, "lost": lost}

    def dispatch(self, server: Tree, clients: Tensor) -> Tree:
        return self.method.dispatch(server, clients)

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        outcome = self.method.client(received, branch(own, "own"), local)
        reply, lost = outcome.reply, branch(own, "lost")
        if lost and _shapes(reply.update) != _shapes(lost):
            raise ValueError(f"feedback must be off for {self.name}: its updates do not look like what it sends out")
        if self.feedback:
            sent, lost = compression.with_feedback(reply.update, lost, self.way, axes=2)
        else:
            sent = compression.encode(reply.update, self.way, axes=2)
        arrived = compression.decode(sent, reply.update, self.way)
        bytes_sent = bytes_each(sent | {"losses": reply.losses})
        compressed = Compressed(arrived, reply.losses, reply.samples, bytes_sent)
        return Outcome(compressed, {"own": outcome.own, "lost": lost}, outcome.adapted)

    def log_weights(self, reply: Reply, share: Tensor, clients: Tensor) -> Tensor:
        return self.method.log_weights(reply, share, clients)

    def log_whole(self, reply: Reply, share: Tensor, clients: Tensor) -> Tensor | None:
        return self.method.log_whole(reply, share, clients)

    def absorb(self, server: Tree, clients: Tensor, reply: Reply) -> Tree:
        return self.method.absorb(server, clients, reply)

    @property
    def absorbs(self) -> bool:
        return self.method.absorbs

    @property
    def aggregates(self) -> bool:
        return self.method.aggregates

    def aggregate(self, server: Tree, mean: WeightedMean) -> Tree:
        return self.method.aggregate(server, mean)

    def serve(self, received: Tree, own: Tree) -> Tree:
        return self.method.serve(received, branch(own, "own"))

    def server_models(self, server: Tree) -> Tree:
        return self.method.server_models(server)

    def diagnose(self, losses: Tensor, share: Tensor, clients: Tensor) -> dict[str, Tensor]:
        return self.method.diagnose(losses, share, clients)

    def settings(self) -> dict[str, Any]:
        return self.method.settings()


def _shapes(tree: Tree) -> dict[str, torch.Size]:
    return {path: t.shape for path, t in named_leaves(tree)}
