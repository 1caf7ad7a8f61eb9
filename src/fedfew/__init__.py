"""Personalised federated learning with few models for many clients."""

from fedfew import data, scalarization
from fedfew._version import __version__
from fedfew.federation import Federation
from fedfew.history import History
from fedfew.methods import APFL, IFCA, Ditto, FedAMP, FedAvg, FedFew, FedMTL, FedProx, FedRep, LocalOnly, Method
from fedfew.run import Run, load, select
from fedfew.training import DivergedError, Interrupted, Progress, train

__all__ = [
    "APFL",
    "IFCA",
    "DivergedError",
    "Ditto",
    "FedAMP",
    "FedAvg",
    "FedFew",
    "FedMTL",
    "FedProx",
    "FedRep",
    "Federation",
    "History",
    "Interrupted",
    "LocalOnly",
    "Method",
    "Progress",
    "Run",
    "__version__",
    "data",
    "load",
    "scalarization",
    "select",
    "train",
]
