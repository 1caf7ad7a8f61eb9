"""How well models fit some samples, and which of them fits best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedfew import targets
from fedfew.config import LabelPrior
from fedfew.engines.evaluation import evaluation_batches
from fedfew.engines.loss import shifted
from fedfew.federation import Pixels, as_input
from fedfew.local import best_model
from fedfew.tasks import Criterion, LossFunction, TaskName, chosen, task_of_loss
from fedfew.training.label_prior import log_frequencies


@dataclass(frozen=True)
class Fit:
    """How well one model fits some samples."""

    loss: float  # mean, by default of cross-entropy
    score: float  # the task's: accuracy, R² or micro-F1

    @property
    def accuracy(self) -> float:
        """The score, by its name for classes."""
        return self.score


def fit(
    models: Sequence[nn.Module],
    x: Any,
    y: Any,
    *,
    pixels: Pixels = "symmetric",
    log_prior: Tensor | None = None,
    task: TaskName | None = None,
    loss: str | LossFunction = "auto",
) -> list[Fit]:
    """How well each of the models fits these samples.

    pixels: what bytes become on their way into a model, as in the federation that the models were trained on. log_prior: added to
    the logits, for models that were trained with label priors. task, loss: as in training; by default what the targets show.
    """
    criterion = criterion_of(y, task, loss)
    inputs = inputs_of(x, pixels)
    if len(inputs) == 0 or len(inputs) != len(y):
        raise ValueError(f"x and y must hold the same number (≥ 1) of samples, not {len(inputs)} and {len(y)}")
    wanted = targets.stored("the data", torch.as_tensor(given(y, criterion)), criterion.task.name, len(inputs))
    fits = []
    with torch.no_grad():
        for module in models:
            module.eval()
            outputs = shifted(torch.cat([module(part) for part in evaluation_batches(inputs)]), log_prior)
            means = torch.stack([term.double().mean() for term in criterion.terms(outputs, wanted)])
            mean_loss, score = means[0], criterion.task.value(means[1:])
            fits.append(Fit(float(mean_loss), float(score)))
    return fits


def criterion_of(y: Any, task: TaskName | None, loss: str | LossFunction | Criterion) -> Criterion:
    targets.check_task(task)
    return chosen(loss, task or task_of_loss(loss) or targets.detected([targets.as_array(y)]))


def given(y: Any, criterion: Criterion) -> NDArray[Any]:
    """Labels or targets as numbers: one-hot rows of a classification as classes."""
    values = targets.as_array(y)
    return targets.from_one_hot(values) if criterion.task.name == "classification" else values


def checked_outputs(models: Sequence[nn.Module], x: Any, pixels: Pixels, label_prior: str, prior_strength: float) -> int:
    """The number of outputs of the models, which are in evaluation mode after it."""
    if not isinstance(models, Sequence):
        raise TypeError(f"models must be a list of modules, such as run.models, not {type(models).__name__}")
    if not models:
        raise ValueError("models is empty: there is nothing to choose from")
    if label_prior not in get_args(LabelPrior):
        raise ValueError(f"label_prior must be none or client, not {label_prior!r}")
    if not 0 <= prior_strength < math.inf:
        raise ValueError(f"prior_strength must be a finite number ≥ 0, not {prior_strength}")
    inputs = inputs_of(x, pixels)
    if len(inputs) == 0:
        raise ValueError("x is empty: at least one sample is needed to choose by")
    with torch.no_grad():
        return min(int(module.eval()(inputs[:2]).shape[-1]) for module in models)  # BatchNorm of a batch needs two


def inputs_of(x: Any, pixels: Pixels) -> Tensor:
    inputs = as_input(torch.as_tensor(x), pixels)
    return inputs.to(torch.float32) if inputs.is_floating_point() else inputs


def prior_of(y: Any, outputs: int, label_prior: LabelPrior, strength: float, criterion: Criterion) -> Tensor | None:
    """What is added to the logits; labels that the models have no output for are refused."""
    labels = given(y, criterion)
    if criterion.task.name != "classification":
        if label_prior != "none":
            raise ValueError(
                f"label_prior is {label_prior!r}, which is for classes, but the task is {criterion.task.name}: use 'none'"
            )
        if criterion.task.name != "language-modelling":
            targets.check_width(targets.stored("y", torch.as_tensor(labels), criterion.task.name, len(labels)), outputs)
        return None
    if labels.dtype.kind not in "biuf":
        raise ValueError("y must be numbers of classes; run.for_new_client takes the names that the run's classes have")
    if labels.size and not 0 <= labels.min() <= labels.max() < outputs:
        raise ValueError(
            f"y runs from {labels.min()} to {labels.max()}, but the models have {outputs} outputs: labels must lie in "
            f"0 … {outputs - 1}"
        )
    return None if label_prior == "none" else strength * log_frequencies(torch.as_tensor(labels).long(), outputs).float()


def best_of(fits: list[Fit]) -> int:
    """The model with the least loss among those whose loss is a number."""
    losses = torch.tensor([[one.loss for one in fits]], dtype=torch.float64)
    if not losses.isfinite().any():
        raise ValueError(f"models: none of the {len(fits)} has a finite loss on these samples: there is nothing to choose")
    return int(best_model(losses))
