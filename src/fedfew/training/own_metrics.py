"""Metrics of the user's own: a function of what a client's served model gives for its test samples, and of their targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fedfew.engines import Engine
from fedfew.federation import Samples
from fedfew.stack import Tree
from fedfew.training.history import History
from fedfew.training.scoring import ServedScores

Metric = Callable[[Tensor, Tensor], float]
"""metric(outputs [N, d], targets) → a number; outputs as the model gives them (logits of classes), on the CPU."""
TAKEN = ("loss", "accuracy", "score")
PREFIX = "served_"


def check(metrics: Mapping[str, Metric], history: History) -> None:
    """Refuse names that cannot be columns of the history, and other metrics than a run was started with."""
    if not isinstance(metrics, Mapping):
        raise TypeError(f"metrics must be functions by name, {{name: function}}, not {type(metrics).__name__}")
    for name, metric in metrics.items():
        if not name.isidentifier() or name in TAKEN:
            raise ValueError(
                f"metrics: {name!r} cannot be a column of the history: choose a Python identifier other than {', '.join(TAKEN)}"
            )
        if not callable(metric):
            raise TypeError(f"metrics: {name} must be a function of outputs and targets, not {type(metric).__name__}")
    before = names(history)
    if len(history) and before != list(metrics):
        raise ValueError(f"metrics are {', '.join(metrics) or 'none'}, but the run began with {', '.join(before) or 'none'}")


def names(history: History) -> list[str]:
    """Of the metrics that a history has columns of."""
    own = {f"{PREFIX}{name}" for name in TAKEN}
    return [column.removeprefix(PREFIX) for column in history.columns if column.startswith(PREFIX) and column not in own]


def scores(
    metrics: Mapping[str, Metric], engine: Engine, candidates: Tree, test: Samples, served: ServedScores
) -> dict[str, Tensor]:
    """Every metric of every client, ``[C]`` each."""
    if not metrics:  # nothing to predict for
        return {}
    found: dict[str, list[float]] = {name: [] for name in metrics}
    for i in range(len(test.count)):
        weights = torch.eye(int(served.choice.max()) + 1)[served.choice[i]] if served.mixture is None else served.mixture[i]
        outputs, y = engine.outputs(candidates, test, i, weights).cpu(), test.y[test.rows(i)].cpu()
        for name, metric in metrics.items():
            try:
                found[name].append(float(metric(outputs, y)))
            except (TypeError, ValueError, RuntimeError) as error:
                raise ValueError(f"metrics: {name} must return one number, but fails for client {i}: {error}") from error
    return {f"{PREFIX}{name}": torch.tensor(values) for name, values in found.items()}
