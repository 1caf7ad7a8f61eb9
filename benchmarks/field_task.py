"""What the three tools of ``field.py`` are given: pfl-research's CIFAR-10 set-up, the same cohorts, batches and first model.

1000 users with 50 images each, dealt evenly; 50 of them a round; one local epoch of batches of 10, SGD with learning rate 0.1;
FedAvg weighted by samples. The model is that benchmark's small CNN, written down anew.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfew import random_streams

USERS, EACH, COHORT, BATCH, LR, CLASSES = 1000, 50, 50, 10, 0.1, 10
WARM_UP = 2  # rounds that are not timed: the first ones load, record and tune
BEGUN = "FIELD_BEGUN"  # when the process was started, in the environment


def simple_cnn(dropout: bool = True) -> nn.Module:
    """Two 3×3 convolutions (32, 64) without padding, 2×2 pooling, 128 hidden units, dropout 0.25 and 0.5; Glorot weights."""
    first, second = (0.25, 0.5) if dropout else (0.0, 0.0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        *([nn.Dropout(first)] if dropout else [nn.Identity()]),
        nn.Flatten(),
        nn.Linear(64 * 14 * 14, 128),
        nn.ReLU(),
        *([nn.Dropout(second)] if dropout else [nn.Identity()]),
        nn.Linear(128, CLASSES),
    )
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
    return model


class Task:
    """A folder with the users' images, the test images, the first model and the settings."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings: dict[str, Any] = json.loads((folder / "settings.json").read_text())
        self.rounds: int = self.settings["rounds"]
        self.device = torch.device(self.settings["device"])

    @staticmethod
    def write(folder: Path, arrays: dict[str, np.ndarray], **settings: Any) -> None:
        """arrays: x [users, 50, 3, 32, 32] and test_x as bytes, y and test_y."""
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array)
        torch.manual_seed(settings["seed"])
        torch.save(simple_cnn().state_dict(), folder / "initial.pt")
        (folder / "settings.json").write_text(json.dumps(settings))

    @cache  # noqa: B019  # a process has one task
    def array(self, name: str) -> np.ndarray:
        return np.asarray(np.load(self.folder / f"{name}.npy", mmap_mode="r"))

    def model(self) -> nn.Module:
        """The first model, the same for all."""
        model = simple_cnn(self.settings["dropout"])
        model.load_state_dict(torch.load(self.folder / "initial.pt"))
        return model

    def cohort(self, number: int) -> list[int]:
        """Users of this round (from 1), the ones fedfew draws."""
        drawn: list[int] = random_streams.participants(
            self.settings["seed"], number, torch.arange(USERS), COHORT / USERS
        ).tolist()
        return drawn

    def order(self, number: int, user: int) -> Tensor:
        """In which order a user sees its images in this round, the one fedfew draws."""
        each = torch.tensor([EACH])
        return random_streams.order(self.settings["seed"], number, torch.tensor([user]), 1, 0, each, EACH)[0, 0]

    def accuracy(self, state: dict[str, Tensor]) -> float:
        """On all test images."""
        model = simple_cnn(self.settings["dropout"]).eval()
        model.load_state_dict(state)
        model.to(self.device)
        right = 0
        with torch.no_grad():
            for at in range(0, len(self.array("test_y")), 500):
                x = inputs(self.array("test_x")[at : at + 500]).to(self.device)
                right += int((model(x).argmax(1).cpu() == torch.from_numpy(self.array("test_y")[at : at + 500].copy())).sum())
        return right / len(self.array("test_y"))

    def finish(self, tool: str, clock: Clock, state: dict[str, Tensor], counted: bool = True, **about: Any) -> None:
        """Write down what a tool did: how long its rounds took, and its last model; counted: of all processes."""
        seconds, busy = clock.rounds(clock.wall), clock.rounds(clock.processor)
        median = statistics.median(seconds) if seconds else None
        state = {name: t.detach().cpu() for name, t in state.items()}
        torch.save(state, self.folder / f"{tool}.pt")
        result = about | {
            "seconds": median,
            "all_seconds": seconds,
            "processor_seconds": statistics.median(busy) if busy and counted else None,
            "all_processor_seconds": busy if counted else None,
            "start_up": None if median is None else max(0.0, clock.wall[0] - float(os.environ[BEGUN]) - median),
            "accuracy": self.accuracy(state),
        }
        (self.folder / f"{tool}.json").write_text(json.dumps(result))


class Clock:
    """When each round ended, on the wall and in time that the processor gave this process."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.processor: list[float] = []

    def tick(self) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self.wall.append(time.time())  # a clock that all processes share
        self.processor.append(time.process_time())

    @staticmethod
    def rounds(ends: list[float]) -> list[float]:
        """Seconds of the rounds that count: not the first ones, nor the last, in which some tools evaluate."""
        return [after - before for before, after in zip(ends[WARM_UP - 1 :], ends[WARM_UP:-1], strict=False)]


def inputs(x: np.ndarray) -> Tensor:
    """Bytes as all three models see them, −1 … 1."""
    return torch.from_numpy(x.astype(np.float32)) / 127.5 - 1


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)
