"""The demonstration: three methods of federated learning where no single model can serve all clients.

Twenty clients see the same kind of hand-written digits, but each group of five sees them rotated by another quarter turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedfew import data
from fedfew.methods import FedAvg, FedFew, LocalOnly, Method
from fedfew.report import same_grouping
from fedfew.training.api import train
from fedfew.training.on_round import Progress
from fedfew.util.cores import torch_threads

if TYPE_CHECKING:
    from fedfew.federation import Federation
    from fedfew.training.run import Run

CLIENTS, BATCH_SIZE, LR = 20, 10, 0.1
METHODS: dict[str, Method] = {"local only": LocalOnly(), "FedAvg": FedAvg(), "FedFew, 4 models": FedFew(models=4)}
FEDFEW = "FedFew, 4 models"
GROUP_NAMES = ("turned 0°", "turned 90°", "turned 180°", "turned 270°")

Watch = Callable[[str], Callable[[Progress], None]]


def federation(seed: int) -> Federation:
    """Digits of 20 clients in four groups."""
    return data.digits(CLIENTS, "rotation", seed=seed)


def train_all(seed: int, watch: Watch, rounds: int) -> dict[str, Run]:
    """One run per method; ``watch(label)`` gives the function that is called after each of its rounds."""
    clients = federation(seed)
    # "auto" might take the one engine or the other, and the last digits with it; the demonstration is to be the same each time
    same: dict[str, Any] = {"rounds": rounds, "batch_size": BATCH_SIZE, "lr": LR, "seed": seed, "engine": "stacked"}
    with torch_threads(1):  # steps this small gain nothing from more, and lose much where others want the processor too
        return {label: train(clients, "mlp", method, on_round=watch(label), **same) for label, method in METHODS.items()}


def groups_found(runs: dict[str, Run], seed: int) -> bool:
    """Whether FedFew gave every group of clients a model of its own."""
    return same_grouping(federation(seed).groups, runs[FEDFEW].choice)
