"""What is measured: local rounds of the paper's models on synthetic samples of the real data's shape and sizes.

The time of a step does not depend on the pixel values, so the samples are drawn from a seed and nothing is read or downloaded:
the same workload is the same bytes on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedfew import models
from fedfew.federation import Samples
from fedfew.util.generators import seeded
from fedfew.util.spelling import unknown

SEED = 0
QUICK = {"clients": 4, "models": 2, "samples": 20}  # the most that --quick lets a workload have


@dataclass(frozen=True)
class Workload:
    """One round of local training: M clients, each with K replicas of a model, SGD."""

    name: str
    about: str
    model: str
    shape: tuple[int, ...]
    classes: int
    clients: int  # M
    models: int  # K
    samples: int  # mean training samples of a client
    batch_size: int
    lr: float
    local_epochs: int = 1
    alpha: float | None = None  # clients' sizes as a Dirichlet(alpha) label skew leaves them; None: all alike
    vocabulary: int | None = None  # of token ids; None: the samples are images
    on_cpu: dict[str, Any] = field(default_factory=dict)  # what is smaller there, so that a round takes seconds
    published: str = ""  # what others report for the whole of it, on their machine

    def sizes(self) -> list[int]:
        """Training samples of each client; ``clients × samples`` in all."""
        total = self.clients * self.samples
        if self.alpha is None:
            return [self.samples] * self.clients
        draw = np.random.RandomState(SEED)  # its stream is frozen, that of numpy's newer generators may change
        share = draw.dirichlet([self.alpha] * self.clients, self.classes).sum(0) / self.classes
        ends = np.rint(np.cumsum(share) * (total - self.clients)).astype(int)  # one sample each, the others by share
        return [1 + int(n) for n in np.diff(ends, prepend=0)]

    def draw(self) -> Samples:
        """The clients' training samples, on the CPU."""
        count = torch.tensor(self.sizes())
        random = torch.Generator().manual_seed(SEED)
        total = int(count.sum())
        return Samples(
            x=self._features(total, random),
            y=torch.randint(0, self.classes, (total,), generator=random),
            start=count.cumsum(0) - count,
            count=count,
            longest=int(count.max()),
        )

    def _features(self, rows: int, random: torch.Generator) -> Tensor:
        if self.vocabulary is not None:
            return torch.randint(0, self.vocabulary, (rows, *self.shape), generator=random, dtype=torch.int32)
        return torch.randint(0, 256, (rows, *self.shape), generator=random, dtype=torch.uint8)

    def module(self) -> nn.Module:
        """The model, its initial parameters drawn from the seed."""
        with seeded(SEED):
            return models.build(self.model, self.shape, self.classes, self.vocabulary)

    def describe(self) -> dict[str, Any]:
        """What distinguishes one measured figure from another."""
        sizes = self.sizes()
        return {
            "name": self.name,
            "model": self.model,
            "shape": list(self.shape),
            "clients": self.clients,
            "models": self.models,
            "samples": sum(sizes),
            "smallest_client": min(sizes),
            "largest_client": max(sizes),
            "batch_size": self.batch_size,
            "local_epochs": self.local_epochs,
            "published": self.published,
        }


# fmt: off
_WORKLOADS = (
    Workload(
        name="digits-mlp",
        about="8×8 digits, MLP with 64 hidden units: small steps, all overhead",
        model="mlp", shape=(1, 8, 8), classes=10, clients=20, models=3, samples=67, batch_size=10, lr=0.1,
    ),
    Workload(
        name="cifar-cnn",
        about="CIFAR-10's shape, the paper's CNN, 20 unequal clients (Dirichlet 0.5): the paper's main setting",
        model="cnn", shape=(3, 32, 32), classes=10, clients=20, models=3, samples=2245, batch_size=50, lr=0.005, alpha=0.5,
        on_cpu={"clients": 6, "samples": 100},
    ),
    Workload(
        name="text-cnn",
        about="AG News' shape, the paper's TextCNN: an embedding of 16 million parameters",
        model="textcnn", shape=(200,), classes=4, clients=20, models=3, samples=500, batch_size=100, lr=0.005,
        vocabulary=32_000, on_cpu={"clients": 4, "samples": 20},
    ),
    Workload(
        name="resnet18",
        about="64×64 images, ResNet-18 with BatchNorm, six clients",
        model="resnet18", shape=(3, 64, 64), classes=8, clients=6, models=3, samples=500, batch_size=50, lr=0.005,
        on_cpu={"samples": 20, "shape": (3, 32, 32)},
    ),
    Workload(
        name="blazefl-cnn",
        about="BlazeFL's own benchmark: 100 clients of 500 CIFAR-10 images, 5 local epochs, a small CNN, one model (FedAvg)",
        model="lenet", shape=(3, 32, 32), classes=10, clients=100, models=1, samples=500, batch_size=50, lr=0.1,
        local_epochs=5, on_cpu={"clients": 10},
        published="BlazeFL's authors report about 42,000 images/s for whole rounds with 100 clients, aggregation and a test of "
        "the global model included, on their machine: 48 CPU cores and an H100 (arXiv 2604.03606)",
    ),
)
# fmt: on
WORKLOADS = {workload.name: workload for workload in _WORKLOADS}


def find(name: str, device: str, quick: bool = False, **sizes: int | None) -> Workload:
    """The workload of this name as it is run on a device ("cpu", "cuda"); sizes that are given count before all else."""
    if name not in WORKLOADS:
        raise unknown("workload", name, WORKLOADS)
    workload = WORKLOADS[name]
    if device == "cpu":
        workload = replace(workload, **workload.on_cpu)
    if quick:
        workload = replace(workload, **{size: min(most, getattr(workload, size)) for size, most in QUICK.items()})
    given = {size: value for size, value in sizes.items() if value is not None}
    for size, value in given.items():
        if value < 1:
            raise ValueError(f"{size} must be ≥ 1, not {value}")
    return replace(workload, **given)  # type: ignore[arg-type]  # sizes are whole numbers
