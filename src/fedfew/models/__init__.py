"""Models by name, built for the shape of a federation's samples."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from fedfew.models.cnn import cnn
from fedfew.models.mlp import linear, mlp
from fedfew.spelling import unknown

MODELS: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {"linear": linear, "mlp": mlp, "cnn": cnn}


def build(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """The model called ``name`` for samples of this shape."""
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    return MODELS[name](shape, classes)
