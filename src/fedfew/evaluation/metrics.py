"""Scores of single clients, and what they add up to over clients and rounds.

Everything but :func:`evaluate` is a pure function of numpy arrays. Formulas and choices: ``docs/scores.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from fedfew.engines.base import evaluation_batches, forward
from fedfew.federation import Federation, Samples
from fedfew.models.served import ServedModel
from fedfew.stack import Tree, take, to
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
        raise ValueError(f"{name} must hold one number a client, shape [M] with M ≥ 1, not {list(array.shape)}")
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


# -- of one client -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClientScores:
    """How well one model fits one client's test data."""

    accuracy: float
    loss: float  # mean cross-entropy
    macro_f1: float
    auc: float  # NaN where the client's labels are all of one class


def client_scores(logits: ArrayLike, labels: ArrayLike, classes: int) -> ClientScores:
    """Scores of one client from ``logits[N, classes]`` and ``labels[N]``.

    A client seldom has all classes, so each macro mean says over which it is taken:
    ``macro_f1``: those that occur among the labels *or* the predictions. A class predicted but absent counts as 0, for it is
    always wrong; a class that is neither is no question that was asked.
    ``auc``: those that have both positives and negatives among the labels; NaN if there is none. Samples are ranked by the
    log-odds of the class, the same order as that of its probability, without the ties of probabilities rounded to 0 or 1.
    """
    scores, y = _checked(logits, labels, classes)
    predicted = scores.argmax(1)
    return ClientScores(
        accuracy=float((predicted == y).mean()),
        loss=float(_cross_entropy(scores, y)),
        macro_f1=_macro_f1(y, predicted),
        auc=_one_vs_rest_auc(y, _log_odds(scores)),
    )


def _checked(logits: ArrayLike, labels: ArrayLike, classes: int) -> tuple[Array, NDArray[np.int64]]:
    scores, y = np.asarray(logits, dtype=np.float64), np.asarray(labels)
    if scores.ndim != 2 or len(scores) == 0 or scores.shape[1] != classes:
        raise ValueError(f"logits must have shape [N ≥ 1, {classes} classes], not {list(scores.shape)}")
    if y.shape != (len(scores),):
        raise ValueError(f"labels must have shape [{len(scores)}], one for each row of logits, not {list(y.shape)}")
    if not np.issubdtype(y.dtype, np.integer):
        raise ValueError(f"labels must be whole numbers, not {y.dtype}")
    if y.min() < 0 or y.max() >= classes:
        raise ValueError(f"labels must lie in 0 … {classes - 1}, but run from {y.min()} to {y.max()}")
    wrong, _ = np.nonzero(~np.isfinite(scores))
    if len(wrong):
        raise ValueError(f"logits must be finite, but those of sample {wrong[0]} are not")
    return scores, y.astype(np.int64)


def _cross_entropy(logits: Array, y: NDArray[np.int64]) -> np.float64:
    shifted = logits - logits.max(1, keepdims=True)
    of_label = shifted[np.arange(len(y)), y]
    return np.mean(np.log(np.exp(shifted).sum(1)) - of_label)


def _macro_f1(y: NDArray[np.int64], predicted: NDArray[np.int64]) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(y, predicted, average="macro", zero_division=0.0))


def _one_vs_rest_auc(y: NDArray[np.int64], rank_by: Array) -> float:
    from sklearn.metrics import roc_auc_score

    present = np.unique(y)
    if len(present) < 2:
        return float("nan")
    return float(np.mean([roc_auc_score(y == c, rank_by[:, c]) for c in present]))


def _log_odds(logits: Array) -> Array:
    """log p − log(1 − p) for every class: x_c − log Σ_{j≠c} exp x_j."""
    shifted = logits - logits.max(1, keepdims=True)
    rows, top = np.arange(len(logits)), logits.argmax(1)
    odds = np.exp(shifted)
    rest = odds.sum(1, keepdims=True) - odds  # ≥ 1 but for the largest, where all digits would cancel:
    odds[rows, top] = 0.0
    rest[rows, top] = odds.sum(1)
    return shifted - np.log(np.maximum(rest, np.finfo(np.float64).tiny))


# -- of all clients of a run -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scores:
    """The scores of M clients, an array [M] each."""

    accuracy: Array
    loss: Array
    macro_f1: Array
    auc: Array
    samples: NDArray[np.int64]  # test samples of each client: to weigh by


def evaluate(run: Run, federation: Federation) -> Scores:
    """Test scores of what each client is served now (:meth:`Run.served_to`).

    Runs where ``federation`` lies (:meth:`Federation.to`).
    """
    expected = run.settings["federation"]
    if len(federation) != expected["clients"] or federation.classes != expected["classes"]:
        raise ValueError(
            f"federation has {len(federation)} clients and {federation.classes} classes, "
            f"but the run was made with {expected['clients']} and {expected['classes']}"
        )
    device = federation.test.y.device
    module = run.new_module().to(device).eval()
    scores = []
    for i in range(len(federation)):
        logits, y = _logits(module, run.served_to(i), federation.test, i)
        try:
            scores.append(client_scores(logits, y, federation.classes))
        except ValueError as error:
            raise ValueError(f"client {i}: {error}") from error
    columns = {name: np.array([getattr(s, name) for s in scores]) for name in ("accuracy", "loss", "macro_f1", "auc")}
    return Scores(samples=federation.test.count.cpu().numpy(), **columns)


def _logits(module: nn.Module, served: Served, samples: Samples, client: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """What a client's served model gives for its samples, in the batches that an engine scores, and their labels."""
    rows, device = samples.rows(client), samples.y.device
    each = [_ModuleWith(module, to(take(served.models, s), device)) for s in range(len(served.weights))]
    whole = ServedModel(each, served.weights, served.log_prior).to(device)
    with torch.no_grad():
        parts = [whole(samples.inputs(batch)) for batch in evaluation_batches(rows)]
    return torch.cat(parts).cpu().numpy(), samples.y[rows].cpu().numpy()


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
    """Mean test accuracies over clients in one round, by its number."""

    round: int
    served: float
    adapted: float


@dataclass(frozen=True)
class LastAndBest:
    last: RoundScore
    best_served: RoundScore
    best_adapted: RoundScore


def last_and_best(history: History) -> LastAndBest:
    """The last scored round, and those with the best mean served and the best mean adapted accuracy (the earliest of equals).

    The last round is an honest estimate. The best ones are chosen *on the test data*, so their scores are optimistic: a maximum
    over many noisy numbers, and more so the more rounds were scored. Report them as what they are, or not at all.
    """
    _require_rounds(history)
    served, adapted = (_means(history[column]) for column in ("served_accuracy", "adapted_accuracy"))

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
