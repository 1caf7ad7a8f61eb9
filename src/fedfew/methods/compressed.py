"""Compression around another method: what the server gets is what a compressed update leaves of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedfew.local import Local
from fedfew.methods import compression
from fedfew.methods.base import Fresh, Outcome, Reply
from fedfew.methods.wrapper import KeepingWrapper
from fedfew.stack import Tree, branch, bytes_each, named_leaves, tree_map


@dataclass
class Compressed(Reply):
    """A reply as it arrives, and the bytes it travelled as."""

    bytes_sent: int = 0

    @property
    def bytes_each(self) -> int:
        return self.bytes_sent


@dataclass(frozen=True)
class WithCompression(KeepingWrapper):
    """A method whose clients send their updates compressed (:mod:`fedfew.methods.compression`); all else is as the method says.

    With feedback for methods whose updates look like what they send out: FedFew, FedAvg, FedProx, not IFCA. It is no method by
    itself; on a network the setting ``compression = "int8"`` does the same.
    """

    way: compression.Way
    feedback: bool = True
    """Whether a client adds what was lost in one round to its update of the next."""

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        server, own = self.method.init(fresh, clients)
        lost: Tree = {}
        if self.feedback:
            sent_out = self.method.dispatch(server, torch.tensor([0]))
            lost = tree_map(lambda t: t.new_zeros(clients, *t.shape[1:]), sent_out)
        return server, {"own": own, "lost": lost}

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
        bytes_sent = bytes_each(sent | reply.all_losses)
        compressed = Compressed(arrived, reply.losses, reply.samples, reply.unseen, bytes_sent)
        return Outcome(compressed, {"own": outcome.own, "lost": lost}, outcome.adapted, outcome.mixture)

    def serve(self, received: Tree, own: Tree) -> Tree:
        return self.method.serve(received, branch(own, "own"))


def _shapes(tree: Tree) -> dict[str, torch.Size]:
    return {path: t.shape for path, t in named_leaves(tree)}
