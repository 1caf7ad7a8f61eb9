"""What a client that took no part uses: the models, chosen or mixed by its samples, with its own label prior."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedfew.config import defaults
from fedfew.data.labels import class_numbers
from fedfew.data.table_preprocessing import TablePreprocessing
from fedfew.data.tokens import Tokens
from fedfew.federation import as_input
from fedfew.local import best_model, mixture_weights
from fedfew.methods import METHODS, Method
from fedfew.models.served import ServedModel
from fedfew.targets import check_width, from_one_hot, stored
from fedfew.tasks import TASKS, Criterion, chosen
from fedfew.training import unlabelled
from fedfew.training.data_record import DataRecord
from fedfew.training.label_prior import log_frequencies
from fedfew.training.prediction import Predictor, logits_of
from fedfew.training.sample_format import SampleFormat, is_raw_table, samples_of


@dataclass(frozen=True)
class NewClient(Predictor):
    """One module with the preprocessing that belongs to it; predicts without a client's name."""

    module: nn.Module
    record: DataRecord
    format: SampleFormat

    @property
    def data(self) -> DataRecord:
        return self.record

    @property
    def sample_format(self) -> SampleFormat:
        return self.format

    @property
    def clients(self) -> int:
        return 1

    @property
    def models(self) -> list[nn.Module]:
        return [self.module]

    def model_of(self, client: int | str) -> nn.Module:
        self.data.client_number(client, 1)
        return self.module

    def _shared_model(self) -> nn.Module | None:
        return self.module


def own_record(data: DataRecord, x: Any) -> DataRecord:
    """The record for a client that took no part: no client's name, and numbers of a raw table standardised by its own rows."""
    fitted = data.preprocessing
    if isinstance(fitted, TablePreprocessing):
        fitted = fitted.for_new_client(x) if is_raw_table(x) else replace(fitted, clients=())
    return replace(data, client_names=(), preprocessing=fitted)


def numbered(y: Any, data: DataRecord, classes: int) -> Tensor:
    """Labels (names or numbers of classes) as numbers; numbers are names, if the names of the classes are numbers."""
    given = np.asarray(y)
    if given.dtype == object or (given.dtype.kind in "iuf" and _are_numbers(data.class_names)):
        words = [str(int(one)) if isinstance(one, float) and one.is_integer() else str(one) for one in given.tolist()]
        given = np.array(words, dtype=np.str_)
    numbers = class_numbers(given, data.class_names or tuple(map(str, range(classes))), "y")
    if len(numbers) == 0 or numbers.min() < 0 or numbers.max() >= classes:
        raise ValueError(f"y must be labels, one per row, as whole numbers from 0 to {classes - 1} or names of classes")
    return torch.from_numpy(numbers)


def targets_of(y: Any, data: DataRecord, format: SampleFormat, x: NDArray[Any]) -> Tensor:
    """A new client's labels or targets as they are stored; of language modelling the tokens of its samples x."""
    if format.task == "language-modelling":
        if y is None and not isinstance(data.preprocessing, Tokens):
            raise ValueError(
                "y must hold the token ids of x, −100 at padding: the models were trained on token ids, not on texts"
            )
        tokens = data.preprocessing.targets(x) if isinstance(data.preprocessing, Tokens) else y
        return stored("y", torch.as_tensor(np.asarray(tokens)), "language-modelling", len(x))
    if format.task == "classification":
        return numbered(from_one_hot(np.asarray(y)), data, format.classes)
    given = torch.as_tensor(np.asarray(y, dtype=np.float32))
    targets = stored("y", given, TASKS[format.task].name, len(given))
    check_width(targets, format.classes)
    return targets


def _are_numbers(names: Sequence[str]) -> bool:
    return bool(names) and all(name.lstrip("-").isdecimal() for name in names)


def new_client(
    models: Sequence[nn.Module],
    settings: Mapping[str, Any],
    data: DataRecord,
    format: SampleFormat,
    x: Any,
    y: Any,
    criterion: Criterion | None = None,
) -> NewClient:
    """What a client with these samples would have been served after the training; y: None for inputs without labels.

    settings: of the training; label_prior, serve, temperature and method (if it is there) count, and loss where no criterion is
    given.
    """
    if not models:
        raise ValueError(
            f"{settings['method']['name']} keeps no whole models on the server, so a client that took no part has none to use"
        )
    settings = defaults() | dict(settings)
    record = own_record(data, x)
    samples = samples_of(x, record, format)
    inputs = as_input(torch.as_tensor(samples), format.pixels)
    if len(inputs) == 0:
        raise ValueError("x is empty: at least one sample is needed to choose by")
    strength = settings["prior_strength"] if settings["label_prior"] == "client" else 0.0
    if y is None and format.task != "language-modelling":  # whose targets are the texts themselves
        weights, prior = _without_labels(models, inputs, format, strength, settings["serve"] == "mixture")
    else:
        labels = targets_of(y, data, format, samples)
        if len(labels) != len(inputs):
            raise ValueError(f"x has {len(inputs)} rows, but y has {len(labels)} labels")
        prior = strength * log_frequencies(labels, format.classes).float() if strength else None
        weights = torch.ones(1)
        if len(models) > 1:
            weights = _by_losses(models, inputs, labels, criterion or chosen(settings["loss"], format.task), prior, settings)
    used = [k for k in range(len(models)) if weights[k] > 0]
    served = ServedModel([models[k] for k in used], weights[used], prior, format.task)
    return NewClient(served.eval(), record, format)


def _by_losses(
    models: Sequence[nn.Module],
    inputs: Tensor,
    labels: Tensor,
    criterion: Criterion,
    prior: Tensor | None,
    settings: Mapping[str, Any],
) -> Tensor:
    """The weight of each model, by its loss on labelled samples."""
    each = [logits_of(ServedModel([m], None, prior), inputs) for m in models]
    losses = torch.stack([criterion.total(outputs, labels) / len(labels) for outputs in each])[None]
    if not losses.isfinite().any():
        raise ValueError(f"none of the {len(models)} models has a finite loss on these samples: there is nothing to choose")
    method = METHODS.get(settings.get("method", {}).get("name", ""), Method)  # unknown: one of the user's own, or none
    if method.learned_mixture is not Method.learned_mixture:
        learned = method.learned_mixture(torch.stack([criterion.losses(outputs, labels) for outputs in each]))
        if learned is not None:
            return learned
    if settings["serve"] == "mixture":
        return mixture_weights(losses, settings["temperature"])[0]
    return torch.nn.functional.one_hot(best_model(losses)[0], len(models)).float()


def _without_labels(
    models: Sequence[nn.Module], inputs: Tensor, format: SampleFormat, strength: float, mixture: bool
) -> tuple[Tensor, Tensor | None]:
    """The weight of each model and the client's prior, from inputs alone."""
    if len(models) == 1 and not strength:
        return torch.ones(1), None
    if format.task != "classification":
        raise ValueError(f"to choose a model for {format.task}, y must be given: without labels there is no loss to compare")
    each = [logits_of(m, inputs) for m in models]
    if not any(scores.isfinite().all() for scores in each):
        raise ValueError(f"none of the {len(models)} models has finite outputs for these samples: there is nothing to choose")
    return unlabelled.choose(each, strength, mixture)
