"""Who takes part in a round, and which parameters are trained and shared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedfew.config.group import Group, train_setting
from fedfew.util.validated import SHARE

BatchNorm = Literal["average", "local", "local-statistics", "batch"]
Freeze = Literal["none", "body"]

ADAPTERS = (
    lambda value: not isinstance(value, str) or value == "none" or value.partition(":")[0] == "lora",
    "none, lora, or lora with its settings, as lora:rank=8,targets=query+value",
)


@dataclass(frozen=True)
class Federated(Group):
    """Which clients take part in a round, and which parameters they train and share."""

    participation: float = train_setting(
        1.0, "Fraction of the clients that take part in a round, drawn again each round.", allowed=SHARE
    )
    adapters: str = train_setting(  # in Python a LoRA as well
        "none",
        "Freeze the model and train small adapters of its layers: lora, or with its settings, as "
        "lora:rank=8,alpha=16,targets=query+value (docs/adapters.md).",
        allowed=ADAPTERS,
    )
    freeze: Freeze = train_setting(
        "none",
        "body: freeze the model and train its last linear layer alone, on features that are computed once.",
        allowed=Freeze,
    )
    batch_norm: BatchNorm = train_setting(
        "average",
        "BatchNorm layers: average (statistics travel with the parameters), local (each client keeps these layers, FedBN), "
        "local-statistics (each client keeps the statistics alone), or batch (no running statistics).",
        allowed=BatchNorm,
    )
