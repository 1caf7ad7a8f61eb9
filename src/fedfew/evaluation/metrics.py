"""The test scores of all clients of a run, and by one name what they add up to: over clients, and over rounds.

Scores of one client are in :mod:`fedfew.evaluation.client_metrics`. Formulas and choices: ``docs/scores.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedfew.engines.evaluation import evaluation_batches, forward
from fedfew.evaluation.client_metrics import ClientScores as ClientScores
from fedfew.evaluation.client_metrics import client_scores as client_scores
from fedfew.evaluation.client_metrics import multi_label_scores, regression_scores
from fedfew.evaluation.over_clients import Summary as Summary
from fedfew.evaluation.over_clients import jain as jain
from fedfew.evaluation.over_clients import summarise as summarise
from fedfew.evaluation.over_rounds import last_and_best as last_and_best
from fedfew.evaluation.over_rounds import weight_diagnostics as weight_diagnostics
from fedfew.federation import Federation, Samples
from fedfew.models.served import ServedModel
from fedfew.stack import Tree, take, to
from fedfew.tasks import Task

if TYPE_CHECKING:
    from fedfew.training.run import Run, Served

Array = NDArray[np.float64]


@dataclass(frozen=True)
class RegressionScores:
    """Of M clients, an array [M] each; NaN where a client's targets are all the same."""

    r2: Array
    loss: Array
    mae: Array
    rmse: Array
    samples: NDArray[np.int64]


@dataclass(frozen=True)
class MultiLabelScores:
    """Of M clients, an array [M] each."""

    micro_f1: Array
    loss: Array
    macro_f1: Array
    auc: Array
    subset_accuracy: Array
    samples: NDArray[np.int64]


@dataclass(frozen=True)
class Scores:
    """The scores of M clients that have classes, an array [M] each."""

    accuracy: Array
    loss: Array
    macro_f1: Array
    auc: Array
    samples: NDArray[np.int64]  # test samples of each client: to weigh by


@dataclass(frozen=True)
class LanguageScores:
    """Of M clients, an array [M] each."""

    perplexity: Array  # of a test token; lower is better
    samples: NDArray[np.int64]


def evaluate(
    run: Run, federation: Federation, each: Callable[[Tensor, Tensor], None] = lambda outputs, y: None
) -> Scores | RegressionScores | MultiLabelScores | LanguageScores:
    """Test scores of what each client is served now (:meth:`Run.served_to`), by the task of the run.

    Runs on the device of ``federation`` (:meth:`Federation.to`). each: called with every client's outputs and targets.
    """
    if run.task.name == "language-modelling":
        return LanguageScores(run.perplexity(), federation.test.count.cpu().numpy())  # as scored: outputs of all tokens are large
    expected = run.settings["federation"]
    if federation.task != run.task.name:
        raise ValueError(f"the task of the federation is {federation.task}, but the run was made for {run.task.name}")
    if len(federation) != expected["clients"] or federation.classes != expected["classes"]:
        raise ValueError(
            f"federation has {len(federation)} clients and {federation.classes} classes, "
            f"but the run was made with {expected['clients']} and {expected['classes']}"
        )
    device = federation.test.y.device
    module = run.new_module().to(device).eval()
    scores: list[dict[str, float]] = []
    for i in range(len(federation)):
        outputs, y = _outputs(module, run.served_to(i), run.task, federation.test, i)
        each(outputs, y)
        try:
            scores.append(_of_client(run, outputs, y, federation.classes))
        except ValueError as error:
            raise ValueError(f"client {i}: {error}") from error
    columns = {name: np.array([of[name] for of in scores]) for name in scores[0]}
    kind: type[Any] = {"classification": Scores, "regression": RegressionScores, "multi-label": MultiLabelScores}[run.task.name]
    made: Scores | RegressionScores | MultiLabelScores = kind(samples=federation.test.count.cpu().numpy(), **columns)
    return made


def _of_client(run: Run, outputs: Tensor, y: Tensor, classes: int) -> dict[str, float]:
    if run.task.name == "classification":
        found = vars(client_scores(outputs.numpy(), y.numpy(), classes))
        return found if run.criterion.is_cross_entropy else found | {"loss": float(run.criterion.losses(outputs, y).mean())}
    if not bool(outputs.isfinite().all()):
        raise ValueError("outputs must be finite, but some are not: training diverged. Lower lr, or standardise the targets")
    score = regression_scores if run.task.name == "regression" else multi_label_scores
    return score(outputs.numpy(), y.numpy()) | {"loss": float(run.criterion.losses(outputs, y).double().mean())}


def _outputs(module: nn.Module, served: Served, task: Task, samples: Samples, client: int) -> tuple[Tensor, Tensor]:
    """What a client's served model gives for its samples, in the batches that an engine scores, and their targets."""
    rows, device = samples.rows(client), samples.y.device
    each = [_ModuleWith(module, to(take(served.models, s), device)) for s in range(len(served.weights))]
    whole = ServedModel(each, served.weights, served.log_prior, task.name).to(device)
    with torch.no_grad():
        parts = [whole(samples.inputs(batch)) for batch in evaluation_batches(rows)]
    return torch.cat(parts).cpu(), samples.y[rows].cpu()


class _ModuleWith(nn.Module):
    """A module with other weights: no module is built per client."""

    def __init__(self, module: nn.Module, weights: Tree) -> None:
        super().__init__()
        self._of = (module, weights)  # in a tuple, so that it is not registered as a submodule

    def forward(self, x: Tensor) -> Tensor:
        return forward(*self._of, x)
