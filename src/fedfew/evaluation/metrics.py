"""Scores of single clients, and what they add up to over clients and rounds.

Everything but :func:`evaluate` is a pure function of numpy arrays; those of a single client are in
:mod:`fedfew.evaluation.client_metrics`. Formulas and choices: ``docs/scores.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from fedfew.engines.evaluation import evaluation_batches, forward
from fedfew.evaluation.client_metrics import ClientScores as ClientScores
from fedfew.evaluation.client_metrics import client_scores as client_scores
from fedfew.evaluation.client_metrics import multi_label_scores, regression_scores
from fedfew.federation import Federation, Samples
from fedfew.models.served import ServedModel
from fedfew.stack import Tree, take, to
from fedfew.tasks import Task
from fedfew.training.history import History

if TYPE_CHECKING:
    from fedfew.training.run import Run, Served

Array = NDArray[np.float64]

# -- over clients ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Summary:
    """One score over clients; NaN throughout where no client has it."""

    clients: int  # how many were counted: those whose value is not NaN
    mean: float
    std: float  # population: divided by the number of clients
    min: float
    max: float
    weighted_mean: float | None  # by number of samples; None where these were not given
    worst_tenth: float  # mean of the ⌈M/10⌉ worst clients
    jain: float  # (Σx)² / (M Σx²): 1/M where one client has everything, 1 where all have the same


def summarise(values: ArrayLike, samples: ArrayLike | None = None, *, higher_is_better: bool = True) -> Summary:
    """A score of M clients in a few numbers. NaN means that a client has none (it was absent): it is left out.

    samples: what ``weighted_mean`` weighs the clients by. higher_is_better: False for losses; turns what ``worst_tenth`` is.
    """
    x = _per_client(values, "values")
    if np.isinf(x).any():
        raise ValueError(f"values must be finite (or NaN for an absent client), but client {_first(np.isinf(x))} has ±inf")
    weights = None if samples is None else _weights(samples, len(x))
    present = ~np.isnan(x)
    x = x[present]
    if len(x) == 0:
        nan = float("nan")
        return Summary(0, nan, nan, nan, nan, None if weights is None else nan, nan, nan)
    worst_first = np.sort(x) if higher_is_better else -np.sort(-x)
    return Summary(
        clients=len(x),
        mean=float(x.mean()),
        std=float(x.std()),
        min=float(x.min()),
        max=float(x.max()),
        weighted_mean=None if weights is None else _weighted_mean(x, weights[present]),
        worst_tenth=float(worst_first[: -(-len(x) // 10)].mean()),
        jain=jain(x),
    )


def jain(values: ArrayLike) -> float:
    """Jain's fairness index (Σx)² / (M Σx²) of values ≥ 0; NaN where one is negative, 1 where all are 0 (all have the same)."""
    x = _per_client(values, "values")
    if x.min() < 0:
        return float("nan")
    if x.max() == 0:
        return 1.0
    x = x / x.max()  # the index does not depend on the scale, but squares of very small or large numbers would be lost
    return float(x.sum() ** 2 / (len(x) * np.square(x).sum()))


def _per_client(values: ArrayLike, name: str) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) == 0:
        raise ValueError(f"{name} must hold one number per client, shape [M] with M ≥ 1, not {list(array.shape)}")
    return array


def _weights(samples: ArrayLike, clients: int) -> Array:
    weights = _per_client(samples, "samples")
    if len(weights) != clients:
        raise ValueError(f"samples has {len(weights)} clients, but values has {clients}")
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        raise ValueError(f"samples must be finite and ≥ 0, but client {_first(wrong)} has {weights[wrong][0]:g}")
    return weights


def _weighted_mean(x: Array, weights: Array) -> float:
    if weights.sum() == 0:
        raise ValueError("samples are 0 for every client that has a value: there is nothing to weigh by")
    return float(np.average(x, weights=weights))


def _first(where: NDArray[np.bool_]) -> int:
    return int(where.argmax())


# -- of all clients of a run -------------------------------------------------------------------------------------------------


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

    Runs where ``federation`` lies (:meth:`Federation.to`). each: called with every client's outputs and targets.
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
        raise ValueError("outputs must be finite")
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


# -- over rounds -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WeightDiagnostics:
    """How a method weighs clients and models, an array [S] over the scored rounds; None where the method has no such weights."""

    round: NDArray[np.int64]
    entropy: Array | None  # −Σ_k w log w, mean over clients: 0 where each counts for one model only, log K where for all alike
    largest: Array | None  # max_k w, mean over clients: 1 … 1/K
    alpha_cv: Array | None  # std of α over clients / its mean: 0 where all clients count alike
    models_in_use: NDArray[np.int64]  # distinct choices; 1 where clients are served one candidate, be it shared or their own


def weight_diagnostics(history: History) -> WeightDiagnostics:
    """The paper's diagnostics of w and α (supplement, sensitivity to μ), each over the clients that took part in the round."""
    _require_rounds(history)
    entropy = largest = cv = None
    if "w" in history.columns:
        w = history["w"].astype(np.float64)
        entropy = np.nanmean(-(w * np.log(np.where(w > 0, w, 1.0))).sum(2), axis=1)
        largest = np.nanmean(w.max(2), axis=1)
    if "alpha" in history.columns:
        alpha = history["alpha"].astype(np.float64)
        cv = np.nanstd(alpha, axis=1) / np.nanmean(alpha, axis=1)
    in_use = np.array([len(np.unique(choice)) for choice in history["choice"]])
    return WeightDiagnostics(history["round"], entropy, largest, cv, in_use)


@dataclass(frozen=True)
class RoundScore:
    """Mean test scores (accuracy, R², …) over clients in one round, by its number."""

    round: int
    served: float
    adapted: float


@dataclass(frozen=True)
class LastAndBest:
    last: RoundScore
    best_served: RoundScore
    best_adapted: RoundScore


def last_and_best(history: History) -> LastAndBest:
    """The last scored round, and those with the best mean served and the best mean adapted score (the earliest of equals).

    The last round is an honest estimate. The best ones are chosen *on the test data*, so their scores are optimistic: a maximum
    over many noisy numbers, and more so the more rounds were scored. Report them as what they are, or not at all.
    """
    _require_rounds(history)
    served, adapted = (_means(history.scores(which)) for which in ("served", "adapted"))

    def at(position: int) -> RoundScore:
        return RoundScore(int(history["round"][position]), float(served[position]), float(adapted[position]))

    return LastAndBest(at(-1), best_served=at(_best(served)), best_adapted=at(_best(adapted)))


def _means(scores: NDArray[Any]) -> Array:
    """Mean over the clients that have a score, [S]; NaN for a round where none has."""
    return np.array([summarise(row).mean for row in scores])


def _best(means: Array) -> int:
    return int(np.where(np.isnan(means), -np.inf, means).argmax())


def _require_rounds(history: History) -> None:
    if len(history) == 0:
        raise ValueError("the history is empty: no round has been scored yet")
