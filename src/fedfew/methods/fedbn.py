"""FedBN: one model for all but for the BatchNorm layers, which are each client's own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedfew.methods.personal_parts import PersonalParts


@dataclass(frozen=True)
class FedBN(PersonalParts):
    """FedAvg whose clients keep their BatchNorm layers: scale, shift and running statistics (Li et al. 2021, "FedBN: Federated
    Learning on Non-IID Features via Local Batch Normalization", Algorithm 1). The same as ``fedavg`` with ``batch_norm="local"``,
    which other methods take, too. A model without BatchNorm layers is trained as in FedAvg.
    """

    name: ClassVar[str] = "fedbn"
    summary: ClassVar[str] = "one model for all but for the BatchNorm layers, which are each client's own"
    when: ClassVar[str] = "clients' inputs differ in brightness, contrast or device, and the model has BatchNorm layers"
    served: ClassVar[str] = "the global model with the client's own BatchNorm layers"
    adapted: ClassVar[str] = "the same after the client's local epochs"

    def personal(self, model: Mapping[str, Tensor]) -> Collection[str]:
        layers = {name.rpartition(".")[0] for name in model if name.rpartition(".")[2] == "running_mean"}
        return [name for name in model if name.rpartition(".")[0] in layers]
