"""FedAvg: one model, averaged over clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedfew.local import Local
from fedfew.methods.base import Family, Fresh, Method, Outcome, Reply
from fedfew.stack import Tree, add, stack, subtract
from fedfew.weighted_mean import WeightedMean


@dataclass(frozen=True)
class FedAvg(Method):
    """One model for all; clients train it, the server averages by number of samples (McMahan et al. 2017, Algorithm 1)."""

    name: ClassVar[str] = "fedavg"
    family: ClassVar[Family] = "one model"
    summary: ClassVar[str] = "one global model, the mean of the locally trained ones"
    when: ClassVar[str] = "clients' data are alike, or one model is all that can be kept; the baseline of one model"
    served: ClassVar[str] = "the global model"
    adapted: ClassVar[str] = "the global model after the client's local epochs"

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        return stack([fresh(0)]), {}

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        trained, losses = local.train(received)
        return Outcome(Reply(subtract(trained, received), losses, local.counts), own, adapted=trained)

    def aggregate(self, server: Tree, mean: WeightedMean) -> Tree:
        return add(server, mean.mean())

    def serve(self, received: Tree, own: Tree) -> Tree:
        return received
