"""What CLoVE, PACFL, FedGroup, CFL and FeSEM have in common: the server averages updates within clusters of clients."""

from __future__ import annotations

from dataclasses import dataclass

from fedfew.local import Local
from fedfew.methods.base import Method, Outcome, Reply
from fedfew.stack import Tree, subtract


@dataclass(frozen=True)
class Clusters(Method):
    """At most K models on the server; a client trains the model of its cluster. It is no method by itself."""

    models: int

    @property
    def aggregates(self) -> bool:
        return False  # the mean of a round is not used: the server averages within clusters itself

    @property
    def not_optimised(self) -> str:
        return ""  # the mean update of a cluster is the step of its model

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        trained, losses = local.train(received)
        parameters, buffers = local.split(subtract(trained, received))
        return Outcome(Reply({"parameters": parameters, "buffers": buffers}, losses, local.counts), own, adapted=trained)

    def serve(self, received: Tree, own: Tree) -> Tree:
        return received
