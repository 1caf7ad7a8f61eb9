"""Local training of a stack of clients: all replicas at once (``stacked``), one per core (``threaded``) or one by one
(``sequential``). All three end with the same parameters.

Imports local, federation, models, stack and random_streams; never methods, training or anything above.
"""

from fedfew.config import LocalTraining
from fedfew.engines.base import Engine, UnsupportedModuleError
from fedfew.engines.choice import make
from fedfew.engines.evaluation import ModelScores
from fedfew.engines.sequential import Sequential
from fedfew.engines.stacked import Stacked
from fedfew.engines.threaded import Threaded

__all__ = [
    "Engine",
    "LocalTraining",
    "ModelScores",
    "Sequential",
    "Stacked",
    "Threaded",
    "UnsupportedModuleError",
    "make",
]
