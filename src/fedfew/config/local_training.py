"""How a client trains: optimiser, schedule, loss and augmentation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self

from fedfew.config.group import Group, compute_setting, train_setting
from fedfew.util.validated import AT_LEAST_ONE, BELOW_ONE, NOT_NEGATIVE, POSITIVE, SHARE, ZERO_OR_MORE

Augment = Literal["none", "flip", "crop-flip"]
ClassWeights = Literal["none", "balanced"]
ClientOptimizer = Literal["sgd", "adam", "adamw"]
Schedule = Literal["constant", "cosine", "step"]
LabelPrior = Literal["none", "client"]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]

TaskName = Literal["classification", "regression", "multi-label", "language-modelling"]
LOSS_TASKS: dict[str, TaskName] = {  # losses that are known by name, and the task that each is for
    "cross-entropy": "classification",
    "mse": "regression",
    "mae": "regression",
    "huber": "regression",
    "bce": "multi-label",
    "next-token": "language-modelling",
}
LOSS = (
    lambda value: value == "auto" or value in LOSS_TASKS or not isinstance(value, str) or ":" in value,
    f"auto, {', '.join(LOSS_TASKS)}, module:function, or in Python a function loss(outputs, targets)",
)


@dataclass(frozen=True)
class LocalTraining(Group):
    """How a client trains: an optimiser as in PyTorch, started afresh each round."""

    lr: float = train_setting(about="Learning rate of the clients.", allowed=POSITIVE)
    batch_size: int = train_setting(about="Samples per step.", allowed=AT_LEAST_ONE)
    local_epochs: int = train_setting(1, "Epochs per client and round.", allowed=AT_LEAST_ONE)
    rounds: int = train_setting(1, "Communication rounds: the length of a schedule.", allowed=AT_LEAST_ONE)
    optimizer: ClientOptimizer = train_setting(
        "sgd", "Optimiser of the clients, started afresh each round: sgd, adam or adamw (try lr 0.001).", allowed=ClientOptimizer
    )
    momentum: float = train_setting(0.0, "Momentum of the clients' SGD.", allowed=BELOW_ONE)
    weight_decay: float = train_setting(
        0.0, "Weight decay of the clients' optimiser; apart from the gradient with adamw.", allowed=NOT_NEGATIVE
    )
    schedule: Schedule = train_setting(
        "constant",
        "Learning rate over rounds: constant, cosine (falls towards 0), or step (times step-factor after half of the rounds, and "
        "again after three quarters).",
        allowed=Schedule,
    )
    warmup_rounds: int = train_setting(
        0, "Rounds in which the learning rate rises evenly to lr, before the schedule.", allowed=ZERO_OR_MORE
    )
    step_factor: float = train_setting(0.1, "With schedule=step: what the learning rate is multiplied by.", allowed=SHARE)
    clip_gradient: float = train_setting(
        0.0, "Largest norm of the gradient of one model on one batch; 0: no limit.", allowed=NOT_NEGATIVE
    )
    loss: str = train_setting(  # in Python a function as well
        "auto",
        "What clients minimise: cross-entropy (classes), mse, mae or huber (numbers), bce (several labels per sample), or "
        "module:function for your own loss(outputs, targets), one value per sample (in Python the function itself). auto: "
        "cross-entropy, mse or bce, whichever fits the data.",
        allowed=LOSS,
    )
    label_smoothing: float = train_setting(
        0.0, "Share of a label that is spread evenly over all classes in training.", allowed=BELOW_ONE
    )
    class_weights: ClassWeights = train_setting(
        "none",
        "balanced: in the training loss a class weighs the inverse of its frequency among the client's own training labels.",
        allowed=ClassWeights,
    )
    mixup: float = train_setting(
        0.0,
        "Mix each training sample with another of its batch by a share from Beta(mixup, mixup); 0: off, 0.2 is usual.",
        allowed=NOT_NEGATIVE,
    )
    augment: Augment = train_setting("none", "Image augmentation: none, flip, or crop-flip.", allowed=Augment)
    label_prior: LabelPrior = train_setting(
        "none",
        "client: each client adds the log of its own label frequencies to the logits, in training and in prediction.",
        allowed=LabelPrior,
    )
    prior_strength: float = train_setting(
        1.0, "Factor of the log label frequencies (τ); 0: as without a prior.", allowed=NOT_NEGATIVE
    )
    precision: Precision = compute_setting(
        "tf32",
        "GPU matmul and convolution precision: tf32, fp32 (half as fast), fp16 (digits of tf32, faster convolutions, overflows "
        "at 65504), bf16.",
        allowed=Precision,
        outcome=False,
    )

    @property
    def scheduled(self) -> bool:
        """Does the learning rate change from round to round?"""
        return self.schedule != "constant" or self.warmup_rounds > 0

    def lr_of(self, round: int) -> float:
        """The learning rate of a round, the first of which is number 1; at every site and after a resume the same."""
        done = max(round, 1) - 1
        if done < self.warmup_rounds:
            return self.lr * (done + 1) / self.warmup_rounds
        if self.schedule == "cosine":
            share = (done - self.warmup_rounds) / max(1, self.rounds - self.warmup_rounds)
            return self.lr * (1 + math.cos(math.pi * min(share, 1.0))) / 2
        if self.schedule == "step":
            return float(self.lr * self.step_factor ** ((2 * done >= self.rounds) + (4 * done >= 3 * self.rounds)))
        return self.lr

    def with_loss(self, loss: Any) -> Self:
        """The same with another loss; a function, or a criterion of fedfew.tasks, may stand for its name."""
        return replace(self, loss=loss)

    def without_effect(self) -> list[str]:
        found = super().without_effect()
        if self.momentum and self.optimizer != "sgd":
            found.append(f"momentum is {self.momentum:g}, but the optimizer is {self.optimizer}: it has no effect")
        if self.changed("step_factor") and self.schedule != "step":
            found.append(f"step_factor is {self.step_factor:g}, but the schedule is {self.schedule}: it has no effect")
        if self.changed("prior_strength") and self.label_prior == "none":
            found.append(f"prior_strength is {self.prior_strength:g}, but label_prior is none: it has no effect")
        if self.label_prior != "none" and self.prior_strength == 0:
            found.append(f"label_prior is {self.label_prior}, but prior_strength is 0: it has no effect")
        elif self.label_prior != "none" and self.label_smoothing:
            found.append(
                f"label_smoothing is {self.label_smoothing:g} with a label prior: it pulls every client's predictions to equal "
                "frequencies, against the prior, and accuracy may fall (docs/recipe.md#label-prior)"
            )
        if self.warmup_rounds > self.rounds and self.schedule == "constant":
            reached = self.lr_of(self.rounds)
            found.append(
                f"warmup_rounds is {self.warmup_rounds} of {self.rounds} rounds: the learning rate reaches {reached:g} only"
            )
        if self.warmup_rounds >= self.rounds and self.schedule != "constant":
            found.append(
                f"schedule is {self.schedule}, but all {self.rounds} rounds are warm-up (warmup_rounds is {self.warmup_rounds}): "
                "it has no effect"
            )
        return found

    @classmethod
    def taken_from(cls, values: Mapping[str, Any], **changes: Any) -> Self:
        """From recorded settings, which may hold more and, where they are of an older version, less."""
        return cls(**({f.name: values[f.name] for f in fields(cls) if f.name in values} | changes))


def loss_name(loss: Any) -> str:
    """What a record calls a loss: its name, or module:name of a user's own function."""
    if isinstance(loss, str):
        return loss
    named = loss if hasattr(loss, "__qualname__") else type(loss)
    return f"{named.__module__}:{named.__qualname__}"
