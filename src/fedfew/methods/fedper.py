"""FedPer: base layers for all, the last layers for each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedfew.methods.allowed import ZeroOrMore
from fedfew.methods.personal_parts import PersonalParts
from fedfew.models.split import last_layers
from fedfew.stack import Tree


@dataclass(frozen=True)
class FedPer(PersonalParts):
    """Clients share the base layers and keep the last ones; a local epoch trains all of them together (Arivazhagan et al. 2019,
    "Federated Learning with Personalization Layers", Algorithms 1 and 2). FedRep trains head and body one after the other.
    """

    personal_layers: ZeroOrMore = 1
    """K_P, the number of last layers that stay with the client. 0: FedAvg."""

    name: ClassVar[str] = "fedper"
    summary: ClassVar[str] = "one shared body, the last layers per client, trained together"
    when: ClassVar[str] = "label skew without the client's label prior, and local work must cost no more than FedAvg's"
    served: ClassVar[str] = "the base layers as received with the client's own last layers"
    adapted: ClassVar[str] = "the same after the client's local epochs"

    def personal(self, model: Mapping[str, Tensor]) -> Collection[str]:
        found = last_layers(model, self.personal_layers)
        self.require(
            len(found) < len(model), "personal_layers", "less than the number of layers of the model (all personal: use local)"
        )
        return found

    def server_models(self, server: Tree) -> Tree:
        return {} if self.personal_layers else server
