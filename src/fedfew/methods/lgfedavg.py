"""LG-FedAvg: a representation for each, the last layers for all."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedfew.methods.allowed import AtLeastOne
from fedfew.methods.personal_parts import PersonalParts
from fedfew.models.split import last_layers
from fedfew.util.spelling import counted


@dataclass(frozen=True)
class LGFedAvg(PersonalParts):
    """Clients keep the first layers, their local representation, and share the last ones; all are trained together (Liang et al.
    2020, "Think Locally, Act Globally: Federated Learning with Local and Global Representations", Algorithm 1). FedPer the other
    way round.
    """

    shared_layers: AtLeastOne = 1
    """The number of last layers that travel. As many as the model has: FedAvg."""

    name: ClassVar[str] = "lgfedavg"
    summary: ClassVar[str] = "one representation per client, the last layers shared"
    when: ClassVar[str] = "much data per client, inputs that differ (sensors, rotations), the same labels, small messages"
    served: ClassVar[str] = "the client's own representation with the last layers as received"
    adapted: ClassVar[str] = "the same after the client's local epochs"

    def without_effect(self, clients: int, layers: int, optimizer: str) -> list[str]:
        return self.beyond("shared_layers", layers, f"the model has {counted(layers, 'layer')}")

    def personal(self, model: Mapping[str, Tensor]) -> Collection[str]:
        return model.keys() - set(last_layers(model, self.shared_layers))
