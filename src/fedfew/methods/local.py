"""Local-only training: no collaboration, the baseline that personalisation must beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedfew.local import Local
from fedfew.methods.base import Family, Fresh, Method, Outcome, Reply
from fedfew.stack import Tree, tree_map


@dataclass(frozen=True)
class LocalOnly(Method):
    """Every client trains a model of its own on its own data; nothing is sent. All start from one initialisation."""

    name: ClassVar[str] = "local"
    family: ClassVar[Family] = "one model per client"
    summary: ClassVar[str] = "local training without communication"
    when: ClassVar[str] = "much data per client, or data so different that others disturb; the baseline of no exchange"
    served: ClassVar[str] = "the client's own model"
    adapted: ClassVar[str] = "the client's own model (nothing is received, so the two scores are the same)"

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        return {}, tree_map(lambda t: t.expand(clients, *t.shape).clone(), fresh(0))

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        trained, losses = local.train(tree_map(lambda t: t[:, None], own))
        return Outcome(Reply({}, losses, local.counts), tree_map(lambda t: t[:, 0], trained), adapted=trained)

    def serve(self, received: Tree, own: Tree) -> Tree:
        return tree_map(lambda t: t[:, None], own)
