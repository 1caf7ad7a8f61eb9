"""Who does the local training of a stack of clients: all replicas at once, or one after the other."""

from fedfew.engines.base import (
    Engine,
    Local,
    LocalTraining,
    Loss,
    Objective,
    Scores,
    UnsupportedModuleError,
    cross_entropy,
)
from fedfew.engines.choice import make
from fedfew.engines.sequential import Sequential
from fedfew.engines.stacked import Stacked

__all__ = [
    "Engine",
    "Local",
    "LocalTraining",
    "Loss",
    "Objective",
    "Scores",
    "Sequential",
    "Stacked",
    "UnsupportedModuleError",
    "cross_entropy",
    "make",
]
