"""A site that never took part gets its model: the one that fits its own data best, perhaps after some local training.

Some of its samples are held out. The model is chosen by the others, adapted on the others, and scored on those held out, before
and after. Nothing leaves the site.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedfew.config import LabelPrior
from fedfew.data import split
from fedfew.engines import LocalTraining, Sequential
from fedfew.engines.augment import check as check_augment
from fedfew.engines.evaluation import evaluation_batches
from fedfew.evaluation.fit import Fit, best_of, checked_outputs, criterion_of, fit, given, inputs_of, prior_of
from fedfew.federation import Federation, Pixels
from fedfew.local import LocalEpochs
from fedfew.methods import LocalOnly
from fedfew.models.batch_norm import uses_batch_statistics
from fedfew.models.served import ServedModel, with_prior
from fedfew.models.state import frozen_state, load_state, replica_state
from fedfew.stack import Tree, named_leaves, tree_map
from fedfew.targets import stored
from fedfew.tasks import Criterion, LossFunction, TaskName
from fedfew.training import batch_norm_policy, task_settings, unlabelled
from fedfew.training.class_weights import with_class_weights


def select(
    models: Sequence[nn.Module],
    x: Any,
    y: Any = None,
    *,
    pixels: Pixels = "symmetric",
    label_prior: LabelPrior = "none",
    prior_strength: float = 1.0,
    task: TaskName | None = None,
    loss: str | LossFunction = "auto",
) -> int:
    """Which of the models fits these samples best (least mean loss): how a client that never took part chooses.

    y: None where there are no labels; the model that is most certain of the inputs is chosen then (classification only).
    label_prior, prior_strength: as the models were trained; "client" adds the log frequencies of these labels (without labels:
    those estimated from the inputs) to the logits. task, loss: as in training; by default what the targets show.
    """
    outputs = checked_outputs(models, x, pixels, label_prior, prior_strength)
    if y is None:
        return _without_labels(models, x, pixels, prior_strength if label_prior == "client" else 0.0)[0]
    prior = prior_of(y, outputs, label_prior, prior_strength, criterion_of(y, task, loss))
    return best_of(fit(models, x, y, pixels=pixels, log_prior=prior, task=task, loss=loss))


def _without_labels(models: Sequence[nn.Module], x: Any, pixels: Pixels, strength: float) -> tuple[int, Tensor | None]:
    """The model that is most certain of the inputs, and the label prior estimated from them (strength 0: None)."""
    with torch.no_grad():
        each = [torch.cat([module(part) for part in evaluation_batches(inputs_of(x, pixels))]) for module in models]
    if not any(scores.isfinite().all() for scores in each):
        raise ValueError(f"models: none of the {len(models)} has finite outputs for these samples: there is nothing to choose")
    weights, prior = unlabelled.choose(each, strength, mixture=False)
    return int(weights.argmax()), None if prior is None else prior.float()


@dataclass(frozen=True)
class Joined:
    """What a client that never took part gets."""

    model: int  # which of the models fits it best
    fits: list[Fit]  # of every model, on the samples it was chosen by; empty where these have no labels
    chosen_by: int  # how many those are
    held_out: int  # how many samples the two scores below are of
    before: Fit | None  # of the model as it came; None where nothing is held out
    after: Fit | None  # of the model after local training; None where it was not trained
    module: nn.Module  # what to use, as it was scored: with the label prior inside
    adapted: bool  # whether that is the one trained locally
    log_prior: Tensor | None = None  # what the module adds to its model's logits, where models were trained with label priors

    @property
    def without_prior(self) -> nn.Module:
        """The module's model alone, whose logits lack the label prior."""
        if self.log_prior is not None and isinstance(self.module, ServedModel):
            return self.module.models[0]
        return self.module

    @property
    def worse(self) -> bool:
        """Whether local training made the model worse: the loss on the samples held out is not less than before."""
        return self.before is not None and self.after is not None and not self.after.loss < self.before.loss


def join(
    models: Sequence[nn.Module],
    x: Any,
    y: Any = None,
    *,
    validation: float = 0.2,
    groups: Any = None,
    training: LocalTraining | None = None,
    keep_adapted: bool = False,
    pixels: Pixels = "symmetric",
    label_prior: LabelPrior = "none",
    prior_strength: float | None = None,
    seed: int = 0,
    on_epoch: Callable[[int, Fit], None] | None = None,
    task: TaskName | None = None,
    loss: str | LossFunction | Criterion = "auto",
) -> Joined:
    """Choose the model that fits these samples best and, where ``training`` is given, go on training it.

    validation: share of the samples held out for the scores, drawn by ``seed``, each class in proportion. groups: one number a
    sample (a patient's, say); all samples of a group are on one side. training: as many epochs of it as it says; each begins with
    fresh momentum, as a client's round does. Unless ``keep_adapted``, a model that this made worse is not used. on_epoch: called
    after every epoch with its number and the fit to the samples held out. label_prior: as the models were trained; "client" adds
    the log frequencies of the labels that the model is chosen by to the logits, times ``prior_strength`` (default: that of
    ``training``, else 1). task, loss: as in training; by default what the targets show.

    y: None where there are no labels (classification only): the model that is most certain of the inputs is chosen, its label
    prior is estimated from them, and nothing is trained or scored.
    """
    if prior_strength is None:
        prior_strength = 1.0 if training is None else training.prior_strength
    outputs = checked_outputs(models, x, pixels, label_prior, prior_strength)
    if y is None:
        if training is not None:
            raise ValueError("y is None, but training needs labels: leave training out, or give y")
        best, prior = _without_labels(models, x, pixels, prior_strength if label_prior == "client" else 0.0)
        return Joined(best, [], len(x), 0, None, None, with_prior(models[best], prior), False, prior)
    x, y = np.asarray(x), np.asarray(y)
    if len(x) != len(y):
        raise ValueError(f"x and y must hold the same number of samples, not {len(x)} and {len(y)}")
    criterion = criterion_of(y, task, loss)
    y = given(y, criterion)
    of_task: dict[str, Any] = {"task": criterion.task.name, "loss": criterion}
    prior_of(y, outputs, label_prior, prior_strength, criterion)  # refuses labels that the models have no output for
    stored("the data", torch.as_tensor(y), criterion.task.name, len(x))  # and those of another shape
    at, out = hold_out(y if criterion.task.name == "classification" else np.zeros(len(y)), validation, groups, seed)
    prior = prior_of(y[at], outputs, label_prior, prior_strength, criterion)
    fits = fit(models, x[at], y[at], pixels=pixels, log_prior=prior, **of_task)
    best = best_of(fits)
    module = models[best]
    before = fit([module], x[out], y[out], pixels=pixels, log_prior=prior, **of_task)[0] if len(out) else None
    plain = Joined(best, fits, len(at), len(out), before, None, with_prior(module, prior), False, prior)
    if training is None:
        return plain
    if not len(out):
        raise ValueError("validation is 0, but without held-out samples the effect of adapting cannot be measured: hold some out")

    def score(trained: nn.Module) -> Fit:
        return fit([trained], x[out], y[out], pixels=pixels, log_prior=prior, **of_task)[0]

    training = training.with_loss(criterion)
    task_settings.check(training, criterion)
    task, numbered = criterion.task.name, y.ndim == 1 and y.dtype.kind in "iu"
    classes = 1 + int(y.max()) if task == "classification" and numbered else None  # one client need not have the first
    here = Federation.from_arrays([(x[at], y[at])], [(x[out], y[out])], classes=classes, task=task)
    own = replace(here.train, pixels=pixels, log_prior=None if prior is None else prior[None])
    trained = _adapted(module, outputs, replace(here, train=own), training, seed, score, on_epoch)
    joined = replace(plain, after=score(trained))
    assert joined.after is not None
    if not math.isfinite(joined.after.loss) and keep_adapted:
        raise ValueError(f"adapting diverged: its loss is no longer finite. Lower lr (it is {training.lr:g})")
    return joined if joined.worse and not keep_adapted else replace(joined, module=with_prior(trained, prior), adapted=True)


def hold_out(y: NDArray[Any], share: float, groups: Any = None, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows to choose and train on, and rows held out, both in ascending order; at least one a side. y: classes, each of which is
    held out in proportion."""
    if not 0 <= share < 1:
        raise ValueError(f"validation must be a share in [0, 1), not {share}")
    rows = np.arange(len(y))
    if share == 0:
        return rows, rows[:0]
    if len(y) < 2:
        raise ValueError(f"there are {len(y)} samples, too few to hold any out: take more, or validation 0")
    shuffled = np.random.default_rng(seed).permutation(len(y))
    if groups is None:
        cut = split.stratified(shuffled, y, share, 0.0, "the data")
    else:
        numbers = np.unique(np.asarray(groups), return_inverse=True)[1].reshape(-1)
        if len(numbers) != len(y):
            raise ValueError(f"groups must hold one number per sample: there are {len(y)} samples, not {len(numbers)}")
        if numbers.max() == 0:
            raise ValueError("all samples are of one group, which cannot be on both sides: take more, or validation 0")
        cut = split.grouped(shuffled, numbers, "groups", share, 0.0, "the data", {})
    return np.sort(cut.train), np.sort(cut.test)


def _adapted(
    module: nn.Module,
    outputs: int,
    here: Federation,
    training: LocalTraining,
    seed: int,
    score: Callable[[nn.Module], Fit],
    on_epoch: Callable[[int, Fit], None] | None,
) -> nn.Module:
    """A trained copy, by the same engine and batches as a client's."""
    policy = "batch" if uses_batch_statistics(module) else "average"
    batch_norm_policy.check(policy, module, LocalOnly(), here, training.batch_size)
    check_augment(training, here.train)
    here = with_class_weights(here, training, outputs)
    engine = Sequential(module, replace(training, schedule="constant", warmup_rounds=0), seed)  # here are no rounds
    trained = copy.deepcopy(module)
    params: Tree = {name: t.detach()[None, None].clone() for name, t in replica_state(module).items()}
    for epoch in range(training.local_epochs):
        params, _ = engine.train(LocalEpochs(params, here.train, here.ids, 1, first_epoch=epoch))
        load_state(trained, dict(named_leaves(tree_map(lambda t: t[0, 0], params))) | frozen_state(module))
        if on_epoch is not None:
            on_epoch(epoch + 1, score(trained.eval()))
    return trained.eval()
