"""Scores, costs, the choice of a model for a client and the choice of K.

Imports training and all below it; report, studies, flower and cli import it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULES = ("choosing_k", "client_metrics", "costs", "distillation", "metrics", "selection")  # imported when first used


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"fedfew.evaluation.{name}")
    raise AttributeError(f"module 'fedfew.evaluation' has no attribute {name!r}")
