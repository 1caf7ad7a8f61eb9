"""Local-only training: no collaboration, the baseline that personalisation must beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedfew.axes import add_model_axis, copies, drop_model_axis
from fedfew.local import Local
from fedfew.methods.base import Family, Fresh, Method, Outcome, Reply
from fedfew.stack import Tree


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
        return {}, copies(fresh(0), clients)

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        trained, losses = local.train(add_model_axis(own))
        return Outcome(Reply({}, losses, local.counts), drop_model_axis(trained), adapted=trained)

    def serve(self, received: Tree, own: Tree) -> Tree:
        return add_model_axis(own)
