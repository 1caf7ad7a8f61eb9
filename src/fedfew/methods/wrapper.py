"""A method around another one: everything is delegated to it, but for what a subclass changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from fedfew.local import Local
from fedfew.methods.base import Fresh, Method, Outcome, Reply
from fedfew.stack import Tree
from fedfew.weighted_mean import WeightedMean


@dataclass(frozen=True)
class Wrapper(Method):
    """Passes everything on to ``method``."""

    method: Method

    def __post_init__(self) -> None:
        words = ("name", "served", "adapted", "notes", "needs_classes", "head_gives_logits")
        for word in words:  # it goes by the name of what it is wrapped around
            object.__setattr__(self, word, getattr(self.method, word))

    def check_against(self, clients: int) -> None:
        self.method.check_against(clients)

    def head_layer(self, parameters: Mapping[str, Tensor]) -> str | None:
        return self.method.head_layer(parameters)

    def without_effect(self, clients: int, layers: int, optimizer: str) -> list[str]:
        return self.method.without_effect(clients, layers, optimizer)

    def smoothed(self, factor: float) -> Method:
        return replace(self, method=self.method.smoothed(factor))

    @property
    def replicas(self) -> int:
        return self.method.replicas

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        return self.method.init(fresh, clients)

    def dispatch(self, server: Tree, clients: Tensor) -> Tree:
        return self.method.dispatch(server, clients)

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        return self.method.client(received, own, local)

    def finish(self, own: Tree, local: Local) -> Tree:
        return self.method.finish(own, local)

    @property
    def finishes(self) -> bool:
        return self.method.finishes

    def diverged(self, own: Tree) -> Tensor | None:
        return self.method.diverged(own)

    def log_weights(self, reply: Reply, share: Tensor, clients: Tensor) -> Tensor:
        return self.method.log_weights(reply, share, clients)

    def log_whole(self, reply: Reply, share: Tensor, clients: Tensor) -> Tensor | None:
        return self.method.log_whole(reply, share, clients)

    @property
    def checks_losses(self) -> bool:
        return self.method.checks_losses

    def confirmed(self, losses: Tensor, unseen: Tensor, share: Tensor, spread: float = 0.0) -> float:
        return self.method.confirmed(losses, unseen, share, spread)

    def loss_bound(self, median: float) -> float:
        return self.method.loss_bound(median)

    @property
    def share_cap(self) -> float:
        return self.method.share_cap

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

    @property
    def not_optimised(self) -> str:
        return self.method.not_optimised

    @property
    def averages(self) -> bool:
        return self.method.averages

    def rearranged(self, average: Tree, before: Tree, after: Tree) -> Tree:
        return self.method.rearranged(average, before, after)

    def serve(self, received: Tree, own: Tree) -> Tree:
        return self.method.serve(received, own)

    def mixture(self, own: Tree) -> Tensor | None:
        return self.method.mixture(own)

    def around(self, factory: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        return self.method.around(factory)

    def assigned(self, server: Tree) -> Tensor | None:
        return self.method.assigned(server)

    def server_models(self, server: Tree) -> Tree:
        return self.method.server_models(server)

    def diagnose(self, losses: Tensor, share: Tensor, clients: Tensor) -> dict[str, Tensor]:
        return self.method.diagnose(losses, share, clients)

    def settings(self) -> dict[str, Any]:
        return self.method.settings()
