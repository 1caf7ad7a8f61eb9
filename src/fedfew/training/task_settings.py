"""Which settings are valid for which task, and what a run reports about its task."""

from __future__ import annotations

from fedfew.config import LocalTraining, Recipe
from fedfew.federation import Federation
from fedfew.methods import Method
from fedfew.tasks import Criterion

WIDE = 10.0  # standard deviation of targets from which a line says so
LARGE_TARGETS = "targets:"  # begins that line


def check(training: LocalTraining, criterion: Criterion, method: Method | None = None) -> None:
    """Refuse settings, and a method, that are not valid for this task or loss."""
    task = criterion.task.name
    if method is not None:
        check_method(method, task)
    if training.label_prior != "none" and task != "classification":
        raise ValueError(
            f"label_prior is {training.label_prior!r}, which adds log frequencies of classes, but the task is {task}: use 'none'"
        )
    for name, off in (("label_smoothing", 0.0), ("class_weights", "none")):
        value = getattr(training, name)
        if value != off and not criterion.is_cross_entropy:
            raise ValueError(
                f"{name} is {value!r}, which is part of cross-entropy, but the loss is {criterion.name}: use {off!r}"
            )


def check_method(method: Method, task: str) -> None:
    if method.needs_classes and task != "classification":
        raise ValueError(f"method: {method.name} works with classes alone, but the task is {task}: choose another method")


def notes(federation: Federation, criterion: Criterion, recipe: Recipe) -> list[str]:
    """What a run reports about its task, one line each; nothing for classification by cross-entropy."""
    task = criterion.task
    if criterion.is_cross_entropy:
        return []
    lines = [f"task: {federation.what}; loss {criterion.name}, score {task.score} (higher is better, 1 at most)"]
    if recipe == "strong" and task.name != "classification":
        lines.append(f"recipe: strong without label_prior, which is for classes, but the task is {task.name}")
    if task.name == "regression":
        spread = float(federation.train.y.std(0, correction=0).max())
        if spread > WIDE:
            lines.append(
                f"{LARGE_TARGETS} their standard deviation is {spread:.3g}. mu and temperature are in units of the loss, and lr "
                "must fit it: standardise the targets, or lower lr and raise mu and temperature"
            )
    return lines
