"""A linear classifier and a multi-layer perceptron on flattened samples."""

from __future__ import annotations

import math

from torch import nn


def linear(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def mlp(shape: tuple[int, ...], classes: int, hidden: int = 64) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), hidden), nn.ReLU(), nn.Linear(hidden, classes))
