"""Who does the local training of a stack of clients: all replicas at once, one after the other, or one a core."""

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
from fedfew.engines.precision import PRECISIONS, Precision
from fedfew.engines.sequential import Sequential
from fedfew.engines.stacked import Stacked
from fedfew.engines.threaded import Threaded

__all__ = [
    "PRECISIONS",
    "Engine",
    "Local",
    "LocalTraining",
    "Loss",
    "Objective",
    "Precision",
    "Scores",
    "Sequential",
    "Stacked",
    "Threaded",
    "UnsupportedModuleError",
    "cross_entropy",
    "make",
]
