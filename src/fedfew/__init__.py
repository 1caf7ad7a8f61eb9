"""Personalised federated learning with few models for many clients."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedfew._version import __version__

if TYPE_CHECKING:
    from fedfew import adapters, data, evaluation, export, methods, models, report, scalarization, sklearn, tracking
    from fedfew.evaluation.selection import join, select
    from fedfew.export.model_file import load_model
    from fedfew.federation import Federation
    from fedfew.methods import APFL, IFCA, Ditto, FedAMP, FedAvg, FedFew, FedMTL, FedProx, FedRep, LocalOnly, Method
    from fedfew.training.api import train
    from fedfew.training.errors import DivergedError, Interrupted
    from fedfew.training.history import History
    from fedfew.training.loading import load
    from fedfew.training.on_round import Progress
    from fedfew.training.run import Run

__all__ = [
    "APFL",
    "IFCA",
    "Ditto",
    "DivergedError",
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
    "adapters",
    "data",
    "evaluation",
    "export",
    "join",
    "load",
    "load_model",
    "methods",
    "models",
    "report",
    "scalarization",
    "select",
    "sklearn",
    "tracking",
    "train",
]

# Names are fetched when first used, so that `fedfew --help` does not wait for torch.
_MODULES = ("adapters", "data", "evaluation", "export", "methods", "models", "report", "scalarization", "sklearn", "tracking")
_HOME = {
    "federation": ["Federation"],
    "methods": ["APFL", "IFCA", "Ditto", "FedAMP", "FedAvg", "FedFew", "FedMTL", "FedProx", "FedRep", "LocalOnly", "Method"],
    "training.api": ["train"],
    "training.history": ["History"],
    "training.errors": ["DivergedError", "Interrupted"],
    "training.on_round": ["Progress"],
    "training.loading": ["load"],
    "training.run": ["Run"],
    "evaluation.selection": ["join", "select"],
    "export.model_file": ["load_model"],
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"fedfew.{name}")
    for module, names in _HOME.items():
        if name in names:
            return getattr(import_module(f"fedfew.{module}"), name)
    raise AttributeError(f"module 'fedfew' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
