"""What a federation's targets are, and what follows from it: the loss, the score, and how outputs of several models are mixed.

===================  =========================  ====================  ==================================================
task                 targets of N samples       losses                score (higher is better)
===================  =========================  ====================  ==================================================
classification       class numbers [N], int64   cross-entropy         accuracy
regression           numbers [N, d], float32    mse, mae, huber       R² of each target, mean over targets
multi-label          0 or 1 [N, d], float32     bce                   micro-F1: a label is predicted where its output > 0
language-modelling   token ids [N, T], int64    next-token            1/perplexity over all tokens of a client
===================  =========================  ====================  ==================================================

A model gives one output per class, target or label: ``[N, d]``; a language model one per token of its vocabulary at every place:
``[N, T, V]``. Scores are at most 1 and are shown in per cent. The targets of a language model are the tokens themselves: what it
gives at a place is compared with the token at the next one. Where a target is −100, nothing is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedfew.config import LOSS_TASKS, loss_name
from fedfew.config import TaskName as TaskName

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""loss(outputs [N, d] or [N, T, V], targets) → one value per sample, [N] or [N, …] (whose mean is taken)."""
FEW = 64  # classes
IGNORED = -100  # the target of a token that is not to be predicted, e.g. of padding


@dataclass(frozen=True)
class Task:
    """What the targets are. ``statistics`` are taken per sample; from their means over a client's samples follows its score."""

    name: TaskName
    loss: str  # by default
    score: str  # its name
    statistics: Callable[[Tensor, Tensor], tuple[Tensor, ...]]
    value: Callable[[Tensor], Tensor]  # means of the statistics [n, …] → score […]
    mixed: Callable[[Tensor, Tensor], Tensor]  # outputs [S, …, d] and log weights that fit them → outputs […, d]

    @property
    def output_axes(self) -> int:
        """Of the outputs for one sample."""
        return 2 if self.name == "language-modelling" else 1

    @property
    def column(self) -> str:
        """What scores are called in the history: served_accuracy, or served_score."""
        return "accuracy" if self.name == "classification" else "score"


def correct(outputs: Tensor, y: Tensor) -> Tensor:
    """For each sample: is the largest of its outputs that of its label? Never where one of them is NaN."""
    largest = outputs.max(-1)
    return (largest.indices == y) & ~largest.values.isnan()


def _squares(outputs: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Per target (y − output)², y and y²; in double precision, since a variance is a small difference of large numbers."""
    y = y.double()
    return (*(y - outputs).square().unbind(-1), *y.unbind(-1), *y.square().unbind(-1))


def _r2(means: Tensor) -> Tensor:
    """Mean over targets of 1 − mean squared error / variance; NaN where a target has the same value in all samples."""
    error, mean, square = means.chunk(3)
    variance = square - mean.square()
    return (1 - error / variance).where(variance > 1e-12 * square, torch.nan).mean(0)


def _hits(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Labels predicted rightly, and labels predicted plus labels that are there."""
    predicted, there = outputs > 0, y > 0.5
    return (predicted & there).sum(-1), predicted.sum(-1) + there.sum(-1)


def _micro_f1(means: Tensor) -> Tensor:
    """2·hits / (predicted + there); 1 where no label is there and none predicted."""
    hits, either = means
    return torch.where(either > 0, 2 * hits / either, 1.0)


def _surprise(outputs: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Per sequence Σ −log p(next token), and of how many tokens; outputs [..., T, V], tokens [..., T]."""
    following = tokens[..., 1:]
    there = following != IGNORED
    chosen = outputs[..., :-1, :].log_softmax(-1).gather(-1, following.where(there, 0)[..., None])[..., 0]
    return -chosen.where(there, 0).sum(-1), there.sum(-1)


def _next_token(outputs: Tensor, tokens: Tensor) -> Tensor:
    """The mean over a sequence's tokens; 0 where there is none to predict."""
    total, count = _surprise(outputs, tokens)
    return total / count.clamp_min(1)


def _inverse_perplexity(means: Tensor) -> Tensor:
    """exp(Σ log p / tokens) over all tokens of a client, however long its sequences are."""
    total, count = means
    return (-total / count).exp()


def _mixed_probabilities(outputs: Tensor, log_weights: Tensor) -> Tensor:
    weights = log_weights.reshape(log_weights.shape + (1,) * (outputs.ndim - log_weights.ndim))  # the same for all tokens
    return torch.logsumexp(_log_softmax(outputs) + weights, 0)


def _mixed_values(outputs: Tensor, log_weights: Tensor) -> Tensor:
    return (outputs * log_weights.exp()).sum(0)


def _mixed_odds(outputs: Tensor, log_weights: Tensor) -> Tensor:
    """The log-odds of the mean probability of each label."""
    yes, no = (torch.logsumexp(F.logsigmoid(signed) + log_weights, 0) for signed in (outputs, -outputs))
    return yes - no


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            "classification",
            "cross-entropy",
            "accuracy",
            lambda outputs, y: (correct(outputs, y),),
            lambda means: means[0],
            _mixed_probabilities,
        ),
        Task("regression", "mse", "R²", _squares, _r2, _mixed_values),
        Task("multi-label", "bce", "micro-F1", _hits, _micro_f1, _mixed_odds),
        Task("language-modelling", "next-token", "1/perplexity", _surprise, _inverse_perplexity, _mixed_probabilities),
    )
}
CLASSIFICATION = TASKS["classification"]


def _cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """``F.cross_entropy(outputs, y, reduction="none")``; on a CPU plain operations are five times as fast over few classes."""
    below = outputs - outputs.amax(-1, keepdim=True)
    of_labels = below.gather(-1, y[..., None])[..., 0]
    return below.exp().sum(-1).log() - of_labels


def _log_softmax(outputs: Tensor) -> Tensor:
    """``outputs.log_softmax(-1)``; on a CPU plain operations are several times as fast over few classes here, too."""
    if outputs.is_cuda or outputs.shape[-1] > FEW:
        return outputs.log_softmax(-1)
    below = outputs - outputs.amax(-1, keepdim=True)
    return below - below.exp().sum(-1, keepdim=True).log()


def _of_numbers(loss: Callable[..., Tensor]) -> LossFunction:
    return lambda outputs, y: loss(outputs, y.to(outputs.dtype), reduction="none")


LOSSES: dict[str, LossFunction] = {
    "cross-entropy": _cross_entropy,
    "mse": _of_numbers(F.mse_loss),
    "mae": _of_numbers(F.l1_loss),
    "huber": _of_numbers(F.huber_loss),
    "bce": _of_numbers(F.binary_cross_entropy_with_logits),
    "next-token": _next_token,
}


@dataclass(frozen=True)
class Criterion:
    """A task with the loss that is minimised in it."""

    task: Task
    name: str  # of the loss; of a function of the user's own module:name
    function: LossFunction

    @property
    def is_cross_entropy(self) -> bool:
        return self.name == "cross-entropy"

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """One loss per sample, for outputs ``[…, d]`` (or ``[…, T, V]``) of samples ``[…]``."""
        if self.is_cross_entropy:
            return _cross_entropy(outputs, y)
        axes = self.task.output_axes
        each = outputs.shape[:-axes]
        rows = outputs.flatten(0, -axes - 1)
        targets = y.reshape(len(rows), *y.shape[len(each) :])
        if targets.is_floating_point():  # mapped over where outputs are: vmap of mse_loss and others confuses the axes otherwise
            targets = targets + rows.new_zeros((), dtype=targets.dtype)
        losses = self.function(rows, targets)
        if not isinstance(losses, Tensor):
            raise ValueError(f"loss: {self.name} must return a tensor of one value per sample, not {type(losses).__name__}")
        if losses.ndim == 0 or len(losses) != len(rows):
            raise ValueError(
                f"loss: {self.name} must return one value per sample, here of shape [{len(rows)}], but returned "
                f"{'a single number' if losses.ndim == 0 else list(losses.shape)}: leave out the mean (reduction='none')"
            )
        return (losses.flatten(1).mean(1) if losses.ndim > 1 else losses).reshape(each)

    def total(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The sum of the losses of samples [B]."""
        if self.is_cross_entropy:
            return F.cross_entropy(outputs, y, reduction="sum")
        return self.losses(outputs, y).sum()

    def terms(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        """Per sample the loss and the statistics of the score: to be averaged over samples, then see :meth:`scores`."""
        return self.losses(outputs, y), *self.task.statistics(outputs, y)

    def number_of_terms(self, y: Tensor) -> int:
        statistics = {"classification": 1, "regression": 3 * y.shape[-1], "multi-label": 2, "language-modelling": 2}
        return 1 + statistics[self.task.name]

    def scores(self, means: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and score […] from the means of the terms [n, …]."""
        return means[0].float(), self.task.value(means[1:]).float()


def criterion(loss: str | Criterion) -> Criterion:
    """The criterion of a loss that is known by name; one that is a criterion already as it is."""
    if isinstance(loss, Criterion):
        return loss
    name = CLASSIFICATION.loss if loss == "auto" else loss
    return Criterion(TASKS[LOSS_TASKS[name]], name, LOSSES[name])


def chosen(loss: str | LossFunction | Criterion, task: str) -> Criterion:
    """The criterion of a setting ``loss`` for targets of this task: auto is the task's own."""
    if isinstance(loss, Criterion):
        return loss
    if not isinstance(loss, str):
        return Criterion(TASKS[task], loss_name(loss), loss)
    if loss == "auto":
        return criterion(TASKS[task].loss)
    if loss not in LOSSES:
        raise ValueError(
            f"loss is {loss!r}, which is not known by name: give the function itself, loss=… in Python (for a run or an export "
            "that was saved, where it is read: fedfew.load(folder, loss=…), fedfew.export.read(folder, loss=…)), or "
            f"--loss {loss} on the command line"
        )
    if LOSS_TASKS[loss] != task:
        fitting = " or ".join(repr(name) for name, of in LOSS_TASKS.items() if of == task)
        raise ValueError(
            f"loss is {loss!r}, which is for {LOSS_TASKS[loss]}, but the task of these targets is {task}: use loss={fitting}, "
            f"or make the federation with task={LOSS_TASKS[loss]!r}"
        )
    return criterion(loss)


def own_criterion(loss: LossFunction | None, recorded: str, task: str) -> Criterion | None:
    """The criterion of a loss of the user's own that is given again for a run which recorded its name; None: none is given."""
    if loss is None:
        return None
    if recorded == "auto" or recorded in LOSSES:
        raise ValueError(f"loss is given, but the models were trained with loss={recorded!r}, which is known: leave it out")
    return chosen(loss, task)


def task_of_loss(loss: Any) -> TaskName | None:
    """The task that a loss is for; None where it does not tell."""
    return LOSS_TASKS.get(loss) if isinstance(loss, str) else None


def outputs_in_words(settings: Mapping[str, Any]) -> str:
    """What a run's models give: 10 classes, 1 target, 5 labels."""
    number = int(settings["federation"]["classes"])
    one, several = {
        "classification": ("class", "classes"),
        "regression": ("target", "targets"),
        "multi-label": ("label", "labels"),
        "language-modelling": ("token", "tokens"),
    }[recorded_task(settings).name]
    return f"{number:,} {one if number == 1 else several}"


def recorded_task(settings: Mapping[str, Any]) -> Task:
    """The task of a run, from its settings; classification where they name none."""
    return TASKS[(settings.get("federation") or {}).get("task", CLASSIFICATION.name)]
