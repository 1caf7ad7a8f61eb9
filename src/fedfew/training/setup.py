"""What a run consists of: its settings, checked against each other and against the data before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from fedfew import methods, models, tasks
from fedfew.adapters import TrainedPart
from fedfew.config import Recipe, TrainConfig, defaults, recipe_settings
from fedfew.data.tokens import Tokens
from fedfew.engines.augment import check as check_augment
from fedfew.federation import Federation
from fedfew.methods import Method
from fedfew.models import ModelFactory
from fedfew.models.own import OwnModel
from fedfew.training import (
    batch_norm_policy,
    default_k,
    distributed,
    model_check,
    notes,
    privacy,
    products,
    task_settings,
    unseen,
    validation,
)
from fedfew.training.model_check import Model
from fedfew.util.devices import device_named


@dataclass(frozen=True)
class Setup:
    """The settings of a run."""

    federation: Federation
    config: TrainConfig
    method: Method
    factory: ModelFactory
    part: TrainedPart  # of the model
    group: distributed.Group
    device: torch.device
    identity: dict[str, Any]  # all settings that decide the outcome, apart from the number of rounds
    notes: list[str]  # a line each, for the run's events

    @classmethod
    def of(
        cls,
        federation: Federation,
        model: Model,
        method: str | Method,
        config: TrainConfig | None,
        recipe: Recipe,
        settings: Mapping[str, Any],
    ) -> Setup:
        """The arguments of :func:`fedfew.train`, checked."""
        if not isinstance(federation, Federation):
            raise TypeError(
                f"train needs a Federation, not {type(federation).__name__}: fedfew.data.load(…) makes one of your data"
            )
        _check_whose(settings, method)
        config, part = _config(config, recipe, settings, federation)
        criterion = tasks.chosen(config.loss, federation.task)
        chosen = methods.make(method) if isinstance(method, str) else method
        if not isinstance(chosen, Method):
            given = f"the class {chosen.__name__}" if isinstance(chosen, type) else repr(chosen)
            raise TypeError(f"method must be a name or a method with its settings, such as FedFew(models=4), not {given}")
        chosen, fewer = default_k.fitting(chosen, (), len(federation)) if isinstance(method, str) else (chosen, "")
        task_settings.check(config, criterion, chosen)
        model, lines = model_check.fitting(model, federation)
        lines += [fewer] if fewer else []
        factory = part.of(models.factory(model, federation.shape, federation.classes, federation.vocabulary, federation.padding))
        module = factory()  # one for all checks, which leave it as it is: making it may read a large file
        about_outputs = _check(config, chosen, module, federation, part)
        model_check.check_loss(criterion, module, federation)
        lines += about_outputs if config.loss in ("auto", "cross-entropy") else []
        lines += [*part.notes(module), *notes.about_losses(config, chosen, part), *notes.about_momentum(config, chosen)]
        lines += task_settings.notes(federation, criterion, recipe)
        group = distributed.group()
        device = distributed.device_of(group, device_named(config.device))
        identity = {"federation": _about(federation), "model": name_of(model), "method": chosen.settings()}
        identity |= config.outcome()
        group.check_same(identity | {"rounds": config.rounds})
        return cls(federation, config.with_loss(criterion), chosen, factory, part, group, device, identity, lines)


def _check_whose(settings: Mapping[str, Any], method: str | Method) -> None:
    """Point to the method where one of its hyperparameters is given as a setting of the training."""
    of_method = methods.METHODS.get(method) if isinstance(method, str) else type(method)
    for name, value in settings.items():
        if of_method is not None and name in getattr(of_method, "__dataclass_fields__", {}) and name not in defaults():
            whole = f"{of_method.__name__}({name}={value!r})"
            raise ValueError(f"{name} is a setting of the method, not of train: give it with the method, method={whole}")


def _config(
    config: TrainConfig | None, recipe: Recipe, settings: Mapping[str, Any], federation: Federation
) -> tuple[TrainConfig, TrainedPart]:
    """The training settings, those of the recipe included, and the part of the model that is trained."""
    colour = federation.train.x.ndim == 4 and federation.shape[0] == 3
    augmented = colour and settings.get("freeze", "none" if config is None else config.freeze) == "none"
    config = TrainConfig.of(config, recipe_settings(recipe, augmented, federation.task == "classification") | dict(settings))
    part = TrainedPart.named(config.adapters, config.freeze)
    return replace(config, **part.settings()), part


def _check(config: TrainConfig, method: Method, module: nn.Module, federation: Federation, part: TrainedPart) -> list[str]:
    """Refuse what does not go together; lines to report about the model's outputs."""
    method.check_against(len(federation))
    config.check_aggregator(len(federation))
    products.check(config, method)
    privacy.check(config, method)
    seen = unseen.with_counts_left(federation, config, method)
    batch_norm_policy.check(config.batch_norm, module, method, seen, config.batch_size)
    check_augment(config, federation.train)
    part.check(config)
    validation.check(config, federation)
    if part.adapters is not None:
        model_check.check_frozen(module, federation)
    about_outputs = model_check.check_outputs(module, federation)
    model_check.check_head(module, federation, method)
    return about_outputs


def _about(federation: Federation) -> dict[str, Any]:
    """What a run records of its federation."""
    tokens = federation.preprocessing
    of_texts = {"tokenizer": tokens.sha256, "padding": tokens.padding} if isinstance(tokens, Tokens) else {}
    return of_texts | {
        "name": federation.name,
        "clients": len(federation),
        "classes": federation.classes,
        "task": federation.task,
        "shape": list(federation.shape),
        "vocabulary": federation.vocabulary,
        "test_samples": federation.test.count.tolist(),
        "pixels": federation.train.pixels,
        "dtype": str(federation.train.x.dtype).removeprefix("torch."),
        "fingerprint": federation.fingerprint(),
    }


def name_of(model: Model) -> str:
    """The model's name, or module:name of a user's own factory or class."""
    if isinstance(model, str):
        return model
    factory = model.model if isinstance(model, OwnModel) else model
    named = factory if hasattr(factory, "__qualname__") else type(factory)
    return f"{named.__module__}:{named.__qualname__}"
