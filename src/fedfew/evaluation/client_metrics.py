"""Scores of one client, from what a model gives for its samples and their targets. Formulas and choices: ``docs/scores.md``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

# -- classes -----------------------------------------------------------------------------------------------------------------


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
    ``macro_f1``: those that occur among the labels *or* the predictions. A class predicted but absent counts as 0, since it is
    always wrong; a class that is neither does not count.
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
    there, guessed, hits = (np.bincount(of) for of in (y, predicted, y[y == predicted]))
    counts = np.zeros((3, max(len(there), len(guessed))))
    for row, of in zip(counts, (there, guessed, hits), strict=True):
        row[: len(of)] = of
    return float(np.nanmean(_ratio(2 * counts[2], counts[0] + counts[1])))


def _one_vs_rest_auc(y: NDArray[np.int64], rank_by: Array) -> float:
    present = np.unique(y)
    if len(present) < 2:
        return float("nan")
    return float(np.mean([_auc(y == c, rank_by[:, c]) for c in present]))


def _auc(positive: NDArray[np.bool_], scores: Array) -> float:
    """The share of pairs of a positive and a negative sample in which the positive one has the higher score; equal ones count
    half."""
    above, below = scores[positive], np.sort(scores[~positive])
    lower, lower_or_equal = (np.searchsorted(below, above, side) for side in ("left", "right"))
    return float((lower + lower_or_equal).mean() / (2 * len(below)))


def _log_odds(logits: Array) -> Array:
    """log p − log(1 − p) for every class: x_c − log Σ_{j≠c} exp x_j."""
    shifted = logits - logits.max(1, keepdims=True)
    rows, top = np.arange(len(logits)), logits.argmax(1)
    odds = np.exp(shifted)
    rest = odds.sum(1, keepdims=True) - odds  # ≥ 1 but for the largest, where all digits would cancel:
    odds[rows, top] = 0.0
    rest[rows, top] = odds.sum(1)
    return shifted - np.log(np.maximum(rest, np.finfo(np.float64).tiny))


@dataclass(frozen=True)
class ClassScores:
    """Per class, an array [classes] each."""

    precision: Array  # NaN for a class that is never predicted
    recall: Array  # NaN for a class without samples
    f1: Array  # NaN for a class that is neither there nor predicted
    samples: NDArray[np.int64]


def class_scores(confusion: ArrayLike) -> ClassScores:
    """Scores of each class from a confusion matrix."""
    counts = np.asarray(confusion, dtype=np.int64)
    hits, there, predicted = counts.diagonal(), counts.sum(1), counts.sum(0)
    return ClassScores(_ratio(hits, predicted), _ratio(hits, there), _ratio(2 * hits, there + predicted), there)


def _ratio(part: ArrayLike, whole: ArrayLike) -> Array:
    a, b = (np.asarray(x, dtype=np.float64) for x in (part, whole))
    return np.divide(a, b, out=np.full(a.shape, np.nan), where=b > 0)


# -- numbers -----------------------------------------------------------------------------------------------------------------


def regression_scores(outputs: ArrayLike, targets: ArrayLike) -> dict[str, float]:
    """R², MAE and RMSE from ``[N, d]`` each. With several targets R² is the mean over them, the errors are over all of them.

    r2: 1 − mean squared error / variance of the targets; NaN where a target has the same value in all samples.
    """
    guess, y = _same_shape(outputs, targets)
    error, variance = np.square(y - guess).mean(0), y.var(0)
    constant = variance <= 1e-12 * np.square(y).mean(0)
    r2 = np.where(constant, np.nan, 1 - error / np.where(constant, 1.0, variance)).mean()
    return {"r2": float(r2), "mae": float(np.abs(y - guess).mean()), "rmse": float(np.sqrt(error.mean()))}


# -- several labels per sample -----------------------------------------------------------------------------------------------


def multi_label_scores(outputs: ArrayLike, targets: ArrayLike) -> dict[str, float]:
    """F1, AUC and subset accuracy from log-odds and 0/1, ``[N, labels]`` each; a label is predicted where its output is > 0.

    micro_f1: over all samples and labels; 1 where no label is there and none predicted. macro_f1: mean over the labels that are
    there or predicted. auc: mean over the labels that some samples have and some do not; NaN if there is none. subset_accuracy:
    share of samples with all labels right.
    """
    scores, y = _same_shape(outputs, targets)
    predicted, there = scores > 0, y > 0.5
    hits, either = (predicted & there).sum(0), predicted.sum(0) + there.sum(0)
    of_labels = _ratio(2 * hits, either)
    mixed = [label for label in range(y.shape[1]) if 0 < there[:, label].sum() < len(y)]
    aucs = [_auc(there[:, label], scores[:, label]) for label in mixed]
    return {
        "micro_f1": float(2 * hits.sum() / either.sum()) if either.sum() else 1.0,
        "macro_f1": float(np.nanmean(of_labels)) if either.sum() else 1.0,
        "auc": float(np.mean(aucs)) if aucs else float("nan"),
        "subset_accuracy": float((predicted == there).all(1).mean()),
    }


def _same_shape(outputs: ArrayLike, targets: ArrayLike) -> tuple[Array, Array]:
    a, b = np.asarray(outputs, dtype=np.float64), np.asarray(targets, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 2 or len(a) == 0:
        raise ValueError(f"outputs and targets must have one shape [N ≥ 1, d], not {list(a.shape)} and {list(b.shape)}")
    return a, b
