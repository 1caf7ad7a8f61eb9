"""What a message of a run asks a site for: settings are read, data loaded, model and engine made."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from fedfew import engines, methods, models, tasks
from fedfew.adapters import TrainedPart
from fedfew.adapters.cached import on_features
from fedfew.config import TrainConfig
from fedfew.engines import Engine
from fedfew.engines.augment import check as check_augment
from fedfew.federation import Federation
from fedfew.flower import site_data
from fedfew.flower.messages import SiteMessage
from fedfew.flower.site_data import SiteConfig
from fedfew.flower.site_errors import SiteError, fails_as
from fedfew.methods import Method
from fedfew.models import ModelFactory
from fedfew.models.state import frozen_hash, holding
from fedfew.stack import named_leaves
from fedfew.tasks import CLASSIFICATION
from fedfew.training import batch_norm_policy, model_check, task_settings, unseen
from fedfew.training.class_weights import with_class_weights
from fedfew.training.initialisation import frozen_parameters
from fedfew.training.label_prior import with_label_prior
from fedfew.util.devices import device_named

Model = str | Callable[[], nn.Module]


@dataclass(frozen=True)
class Task:
    """One client's part of a round."""

    run: str
    round: int
    method: Method
    factory: ModelFactory
    engine: Engine
    loaded: Federation  # of this one client, as it was loaded
    data: Federation  # the same as it is trained on
    settings: dict[str, Any]
    training: TrainConfig

    @classmethod
    def of(cls, message: SiteMessage, config: SiteConfig, model: Model) -> Task:
        with fails_as("data"):
            device = device_named(config.device)
            data = loaded = site_data.load(config)
        with fails_as("settings"):
            run = run_of(message)
            settings: dict[str, Any] = json.loads(message.text("settings"))
            if config.masked_only and settings["aggregation"] != "masked":
                raise ValueError(f"masked-only is set here, but the run's aggregation is {settings['aggregation']}")
            _check_data(settings, data)
            training = TrainConfig.taken_from(settings)
            method = methods.make(**settings["method"])
            part = TrainedPart.recorded(settings)
            factory, method = _model_and_method(part.of(_factory(model, settings)), method, settings, training, data)
            _check_frozen(settings, factory)
            if message.integer("last") == 0:  # before this client's first round
                _check_model(settings, factory, data, method, part)
            criterion = tasks.chosen(training.loss, data.task)
            task_settings.check(training, criterion, method)
            training = training.with_loss(criterion)
            check_augment(training, data.train)
            data, trained = on_features(data, factory, device) if part.freeze == "body" else (data, factory)
            data = unseen.kept_apart(data, training, method)
            data = with_label_prior(data, training, settings["classes"])
            data = with_class_weights(data, training, settings["classes"]).to(device)
            module = trained().to(device)
            engine = engines.make(config.engine, module, training.local, settings["seed"], data.train, method.replicas)
            return cls(run, message.integer("round", 1), method, factory, engine, loaded, data, settings, training)

    @property
    def device(self) -> torch.device:
        return self.data.train.y.device


def run_of(message: SiteMessage) -> str:
    """The run's identifier, which becomes a folder's name."""
    run = message.text("run")
    if not re.fullmatch("[0-9a-f]{32}", run):
        raise ValueError("run is not an identifier of 32 hexadecimal digits")
    return run


def _factory(model: Model, settings: dict[str, Any]) -> ModelFactory:
    shape, classes, vocabulary = settings["shape"], settings["classes"], settings["vocabulary"] or None
    return models.factory(model, shape, classes, vocabulary, settings.get("padding"))


def _model_and_method(
    factory: ModelFactory, method: Method, settings: dict[str, Any], training: TrainConfig, data: Federation
) -> tuple[ModelFactory, Method]:
    """As the run's batch_norm wants them, with the frozen parameters that the run's seed gives."""
    policy, seen = settings["batch_norm"], unseen.with_counts_left(data, training, method)
    batch_norm_policy.check(policy, factory(), method, seen, settings["batch_size"])
    factory, method = batch_norm_policy.with_policy(policy, factory, method)
    return holding(factory, dict(named_leaves(frozen_parameters(factory, settings["seed"])))), method


def _check_model(settings: dict[str, Any], factory: ModelFactory, data: Federation, method: Method, part: TrainedPart) -> None:
    """Refuse a model that the simulator refuses."""
    data = replace(data, classes=settings["classes"], class_names=())  # a site may lack classes
    if part.adapters is not None:
        model_check.check_frozen(factory(), data)
    model_check.check_outputs(factory(), data)
    model_check.check_head(factory(), data, method)


def _check_data(settings: dict[str, Any], data: Federation) -> None:
    """Refuse data of another kind than the run's: they may have changed since this site joined."""
    here = {"task": data.task, "shape": list(data.shape), "vocabulary": data.vocabulary or None}
    run = {"task": settings.get("task", CLASSIFICATION.name)} | {name: settings[name] or None for name in ("shape", "vocabulary")}
    differs = [f"{name} is {here[name]}, the run's is {run[name]}" for name in here if (here[name] or None) != run[name]]
    if data.classes > settings["classes"] or (data.task != CLASSIFICATION.name and data.classes < settings["classes"]):
        differs.append(f"{data.classes} classes, targets or labels, the run's have {settings['classes']}")
    if differs:
        raise SiteError("data") from ValueError(f"the data here are not of the run's kind: {'; '.join(differs)}")


def _check_frozen(settings: dict[str, Any], factory: ModelFactory) -> None:
    """Refuse another base model than the server's."""
    if "frozen" in settings and frozen_hash(factory()) != settings["frozen"]:
        raise ValueError("the model's frozen parameters are not those of the server: give all sites the same base model")
