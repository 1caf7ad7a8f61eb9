"""What the settings of a run name: its federation, model and method."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from fedfew.config import TrainConfig
from fedfew.training.own_method import import_method, is_own
from fedfew.training.resolve import converted
from fedfew.training.settings import OF_THE_DATA, Settings, task_named
from fedfew.util.imports import find_function

if TYPE_CHECKING:
    from torch import nn

    from fedfew.federation import Federation
    from fedfew.methods import Method


def make_method(settings: Settings) -> Method:
    """The method with its hyperparameters; one of the user's own is imported."""
    from fedfew import methods

    if is_own(settings.method):
        import_method(settings.method)
    return methods.make(settings.method, **converted(settings.method, settings.method_settings))


def make_federation(settings: Settings) -> tuple[Federation, list[str]]:
    """The data set, partitioned among clients, and notes about it."""
    from fedfew import data

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", UserWarning)
        federation = data.load(settings.dataset, **data_keywords(settings))
    notes = [*(str(warning.message) for warning in warned), *federation.about.get("notes", [])]
    if settings.recipe == "strong" and federation.task != "classification":
        notes.append(f"recipe strong without a label prior, which is for classes: the task is {federation.task}")
    return federation, notes


def for_task(settings: Settings, federation: Federation) -> Settings:
    """The settings without the recipe's label prior, where the data turn out not to be classes."""
    if settings.recipe == "plain" or federation.task == "classification":
        return settings
    return replace(settings, label_prior="none")


def data_keywords(settings: Settings) -> dict[str, Any]:
    """The keywords of :func:`fedfew.data.load`."""
    columns = settings.input
    other_names = {
        "seed": settings.data_seed,
        "on_bad": "skip" if settings.skip_bad else "raise",
        "group": settings.group or None,
        "task": task_named(settings.task, settings.loss),
        "input": columns[0] if columns is not None and len(columns) == 1 else columns,
        "tokenizer": settings.tokenizer or None,
        "max_length": settings.max_length if settings.tokenizer or settings.changed("max_length") else None,
    }
    same = {name: getattr(settings, name) for name in OF_THE_DATA if name not in ("dataset", "data_seed", "skip_bad")}
    return same | other_names


def find_model(name: str) -> str | Callable[[], nn.Module]:
    """A model's name as it is, or the factory that ``module:factory`` names."""
    return find_function(name, "model") if ":" in name else name


def training_arguments(settings: Settings) -> dict[str, Any]:
    """The keyword arguments of :func:`fedfew.train` but for folder, resume and on_round."""
    plain = {f.name: getattr(settings, f.name) for f in fields(TrainConfig)}
    loss = find_function(settings.loss, "loss") if ":" in settings.loss else settings.loss
    return plain | {"model": find_model(settings.model), "method": make_method(settings), "loss": loss}
