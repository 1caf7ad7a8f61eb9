"""The settings of training, each declared once: default, description, what is allowed.

:func:`fedfew.train` takes them as keywords, the command line as flags, study files and Flower's run configuration as keys.
Imports nothing but :mod:`fedfew.util`, so that ``fedfew --help`` need not wait for torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Literal, Self, get_args

from fedfew.util.spelling import unknown
from fedfew.util.validated import (
    AT_LEAST_ONE,
    AT_LEAST_ONE_OR_NONE,
    BELOW_ONE,
    NOT_NEGATIVE,
    OPEN_SHARE,
    POSITIVE,
    SHARE,
    WHOLE,
    ZERO_OR_MORE,
    one_of,
    setting,
    validate,
)

Augment = Literal["none", "flip", "crop-flip"]
ClassWeights = Literal["none", "balanced"]
ClientOptimizer = Literal["sgd", "adam", "adamw"]
Schedule = Literal["constant", "cosine", "step"]
BatchNorm = Literal["average", "local", "local-statistics", "batch"]
LabelPrior = Literal["none", "client"]
Precision = Literal["fp32", "tf32", "bf16"]
Serve = Literal["best", "mixture"]
Keep = Literal["last", "best"]
BestBy = Literal["loss", "accuracy"]
ServerOptimizerName = Literal["none", "momentum", "adam", "yogi", "adagrad"]
Aggregator = Literal["mean", "median", "trimmed-mean", "geometric-median", "krum", "multi-krum", "norm-bound"]
Attack = Literal["none", "label-flip", "sign-flip", "forged-loss", "noise"]
EngineName = Literal["auto", "stacked", "threaded", "sequential"]
Freeze = Literal["none", "body"]

AGGREGATOR_SETTINGS = {"trim": ("trimmed-mean",), "assumed_attackers": ("krum", "multi-krum"), "norm_bound": ("norm-bound",)}
LOSS_NAMES = ("cross-entropy", "mse", "mae", "huber", "bce", "next-token")
LOSS = (
    lambda value: value == "auto" or value in LOSS_NAMES or not isinstance(value, str) or ":" in value,
    f"auto, {', '.join(LOSS_NAMES)}, module:function, or in Python a function loss(outputs, targets)",
)
ADAPTERS = (
    lambda value: not isinstance(value, str) or value == "none" or value.partition(":")[0] == "lora",
    "none, lora, or lora with its settings, as lora:rank=8,targets=query+value",
)
FALLING = 0.25  # the last share of the rounds, over which a method's smoothing falls
TRAINING, COMPUTE = "How to train", "Hardware, scoring and checkpoints"


Recipe = Literal["plain", "strong"]
STRONG: dict[str, Any] = {
    "label_prior": "client",
    "server_optimizer": "momentum",
    "server_average": 0.9,
    "serve": "mixture",
    "smoothing_end": 0.25,
}
"""What recipe="strong" sets, besides crop-flip augmentation for colour images."""


def recipe_settings(recipe: str, colour_images: bool, classes: bool = True) -> dict[str, Any]:
    """The settings of a recipe; "plain" has none. classes: False for other tasks, which have no label prior."""
    if recipe not in get_args(Recipe):
        raise ValueError(f"recipe must be plain or strong, not {recipe!r}")
    if recipe == "plain":
        return {}
    settings = STRONG | ({"augment": "crop-flip"} if colour_images else {})
    return {name: value for name, value in settings.items() if classes or name != "label_prior"}


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains: an optimiser as in PyTorch, started afresh each round."""

    lr: float = setting(about="Learning rate of the clients.", allowed=POSITIVE, panel=TRAINING)
    batch_size: int = setting(about="Samples per step.", allowed=AT_LEAST_ONE, panel=TRAINING)
    local_epochs: int = setting(1, "Epochs per client and round.", allowed=AT_LEAST_ONE, panel=TRAINING)
    rounds: int = setting(1, "Communication rounds: the length of a schedule.", allowed=AT_LEAST_ONE, panel=TRAINING)
    optimizer: ClientOptimizer = setting(
        "sgd",
        "Optimiser of the clients, started afresh each round: sgd, adam or adamw (try lr 0.001).",
        allowed=one_of(*get_args(ClientOptimizer)),
        panel=TRAINING,
    )
    momentum: float = setting(0.0, "Momentum of the clients' SGD.", allowed=BELOW_ONE, panel=TRAINING)
    weight_decay: float = setting(
        0.0, "Weight decay of the clients' optimiser; apart from the gradient with adamw.", allowed=NOT_NEGATIVE, panel=TRAINING
    )
    schedule: Schedule = setting(
        "constant",
        "Learning rate over rounds: constant, cosine (falls towards 0), or step (times step-factor after half of the rounds, and "
        "again after three quarters).",
        allowed=one_of(*get_args(Schedule)),
        panel=TRAINING,
    )
    warmup_rounds: int = setting(
        0, "Rounds in which the learning rate rises evenly to lr, before the schedule.", allowed=ZERO_OR_MORE, panel=TRAINING
    )
    step_factor: float = setting(
        0.1, "With schedule=step: what the learning rate is multiplied by.", allowed=SHARE, panel=TRAINING
    )
    clip_gradient: float = setting(
        0.0, "Largest norm of the gradient of one model on one batch; 0: no limit.", allowed=NOT_NEGATIVE, panel=TRAINING
    )
    loss: str = setting(  # in Python a function as well
        "auto",
        "What clients minimise: cross-entropy (classes), mse, mae or huber (numbers), bce (several labels per sample), or "
        "module:function for your own loss(outputs, targets), one value per sample (in Python the function itself). auto: "
        "cross-entropy, mse or bce, whichever fits the data.",
        allowed=LOSS,
        panel=TRAINING,
    )
    label_smoothing: float = setting(
        0.0, "Share of a label that is spread evenly over all classes in training.", allowed=BELOW_ONE, panel=TRAINING
    )
    class_weights: ClassWeights = setting(
        "none",
        "balanced: in the training loss a class weighs the inverse of its frequency among the client's own training labels.",
        allowed=one_of(*get_args(ClassWeights)),
        panel=TRAINING,
    )
    mixup: float = setting(
        0.0,
        "Mix each training sample with another of its batch by a share from Beta(mixup, mixup); 0: off, 0.2 is usual.",
        allowed=NOT_NEGATIVE,
        panel=TRAINING,
    )
    augment: Augment = setting(
        "none", "Image augmentation: none, flip, or crop-flip.", allowed=one_of(*get_args(Augment)), panel=TRAINING
    )
    label_prior: LabelPrior = setting(
        "none",
        "client: each client adds the log of its own label frequencies to the logits, in training and in prediction.",
        allowed=one_of(*get_args(LabelPrior)),
        panel=TRAINING,
    )
    prior_strength: float = setting(
        1.0, "Factor of the log label frequencies (τ); 0: as without a prior.", allowed=NOT_NEGATIVE, panel=TRAINING
    )
    precision: Precision = setting(
        "tf32",
        "GPU matmul and convolution precision: tf32, fp32 (half as fast), or bf16.",
        allowed=one_of(*get_args(Precision)),
        panel=COMPUTE,
        outcome=False,
    )

    def __post_init__(self) -> None:
        validate(self)

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
        """Settings that do nothing beside the others, one line each."""
        found = []
        if self.momentum and self.optimizer != "sgd":
            found.append(f"momentum is {self.momentum:g}, but the optimizer is {self.optimizer}: it has no effect")
        if self.step_factor != defaults()["step_factor"] and self.schedule != "step":
            found.append(f"step_factor is {self.step_factor:g}, but the schedule is {self.schedule}: it has no effect")
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


@dataclass(frozen=True)
class TrainConfig(LocalTraining):
    """All settings of :func:`fedfew.train` but the federation, the model and the method."""

    lr: float = setting(0.05, "Learning rate of the clients.", allowed=POSITIVE, panel=TRAINING)
    batch_size: int = setting(20, "Samples per step.", allowed=AT_LEAST_ONE, panel=TRAINING)
    rounds: int = setting(100, "Communication rounds.", allowed=AT_LEAST_ONE, panel=TRAINING)
    participation: float = setting(
        1.0, "Fraction of the clients that take part in a round, drawn anew each round.", allowed=SHARE, panel=TRAINING
    )
    adapters: str = setting(  # in Python a LoRA as well
        "none",
        "Freeze the model and train small adapters of its layers: lora, or with its settings, as "
        "lora:rank=8,alpha=16,targets=query+value (docs/adapters.md).",
        allowed=ADAPTERS,
        panel=TRAINING,
    )
    freeze: Freeze = setting(
        "none",
        "body: freeze the model and train its last linear layer alone, on features that are computed once.",
        allowed=one_of(*get_args(Freeze)),
        panel=TRAINING,
    )
    batch_norm: BatchNorm = setting(
        "average",
        "BatchNorm layers: average (statistics travel with the parameters), local (each client keeps these layers, FedBN), "
        "local-statistics (each client keeps the statistics alone), or batch (no running statistics).",
        allowed=one_of(*get_args(BatchNorm)),
        panel=TRAINING,
    )
    aggregator: Aggregator = setting(
        "mean",
        "How the clients' updates become one: mean, or robust against false ones: median, trimmed-mean, geometric-median, krum, "
        "multi-krum or norm-bound. All but mean keep a round's updates in memory.",
        allowed=one_of(*get_args(Aggregator)),
        panel=TRAINING,
    )
    trim: float = setting(
        0.2,
        "With aggregator=trimmed-mean: fraction of the weight that is left out at each end.",
        allowed=(lambda value: 0 <= value < 0.5, "in [0, 0.5)"),
        panel=TRAINING,
    )
    assumed_attackers: int = setting(
        1,
        "With aggregator=krum or multi-krum: clients per round that may send false updates.",
        allowed=ZERO_OR_MORE,
        panel=TRAINING,
    )
    norm_bound: float = setting(
        1.0,
        "With aggregator=norm-bound: longer updates are shortened to this many times the round's median length.",
        allowed=POSITIVE,
        panel=TRAINING,
    )
    attack: Attack = setting(
        "none",
        "Simulate an attack: label-flip, sign-flip, forged-loss or noise (docs/robustness.md). Attackers get no scores.",
        allowed=one_of(*get_args(Attack)),
        panel=TRAINING,
    )
    attackers: int = setting(1, "With attack: how many clients, drawn by the seed.", allowed=AT_LEAST_ONE, panel=TRAINING)
    dp_noise: float = setting(
        0.0,
        "Differential privacy of clients: noise on a round's sum, in units of dp-clip (docs/privacy.md); 0: off, 1 is usual.",
        allowed=NOT_NEGATIVE,
        panel=TRAINING,
    )
    dp_clip: float = setting(
        1.0,
        "With dp-noise: largest norm of what a client contributes, all its models together.",
        allowed=POSITIVE,
        panel=TRAINING,
    )
    dp_delta: float = setting(
        1e-5, "With dp-noise: the δ at which ε is given; below 1 / number of clients.", allowed=OPEN_SHARE, panel=TRAINING
    )
    server_optimizer: ServerOptimizerName = setting(
        "none",
        "What the server does with a round's update: none (adds it), momentum (FedAvgM), adam, yogi or adagrad.",
        allowed=one_of(*get_args(ServerOptimizerName)),
        panel=TRAINING,
    )
    server_lr: float = setting(
        1.0, "Step of the server optimiser (adam, yogi, adagrad: try 0.01).", allowed=POSITIVE, panel=TRAINING
    )
    server_momentum: float = setting(0.9, "β₁ of the server optimiser; no effect with none.", allowed=BELOW_ONE, panel=TRAINING)
    server_average: float = setting(
        0.0,
        "Serve an exponential average of the server's models over rounds; the weight of the past (0: the newest models).",
        allowed=BELOW_ONE,
        panel=TRAINING,
    )
    serve: Serve = setting(
        "best",
        "With several candidate models: best (the one with the least loss on the client's training data) or mixture (their "
        "predictions averaged, weights ∝ exp(−loss / temperature)).",
        allowed=one_of(*get_args(Serve)),
        panel=TRAINING,
    )
    temperature: float = setting(
        0.5, "With serve=mixture: → 0 is the best model alone, → ∞ all alike. In units of loss.", allowed=POSITIVE, panel=TRAINING
    )
    smoothing_end: float = setting(
        1.0,
        "FedFew's μ in the last round, as a share of mu: it falls over the last quarter of the rounds, so that models specialise "
        "in the end. 1: constant.",
        allowed=SHARE,
        panel=TRAINING,
    )
    restart_unused: int = setting(
        0,
        "With several models on the server: one that no client has used for so many rounds starts again near the model of the "
        "client that is served worst; 0: never.",
        allowed=ZERO_OR_MORE,
        panel=TRAINING,
    )
    early_stopping: int = setting(
        0,
        "Stop after so many scored rounds without a better one on validation data; 0: never. Needs val-share.",
        allowed=ZERO_OR_MORE,
        panel=TRAINING,
    )
    keep: Keep = setting(
        "last",
        "Models to use in the end: of the last round, or of the best scored round on validation data. best needs val-share.",
        allowed=one_of(*get_args(Keep)),
        panel=TRAINING,
    )
    best_by: BestBy = setting(
        "loss",
        "What early-stopping and keep=best compare: the mean validation loss or accuracy (other tasks: score) over clients.",
        allowed=one_of(*get_args(BestBy)),
        panel=TRAINING,
    )
    seed: int = setting(0, "Seed of initial models and batches.", allowed=WHOLE, panel=TRAINING)
    engine: EngineName = setting(
        "auto",
        "stacked (all replicas at once), threaded (one per core), sequential, or auto: the fastest in a short trial.",
        allowed=one_of(*get_args(EngineName)),
        panel=COMPUTE,
        outcome=False,
    )
    device: str = setting("auto", "cpu, cuda, cuda:N, or auto.", panel=COMPUTE, outcome=False)
    chunk: int | None = setting(
        None,
        "Clients processed at once; chosen to fit in memory unless given. The result is the same.",
        allowed=AT_LEAST_ONE_OR_NONE,
        panel=COMPUTE,
        outcome=False,
    )
    score_every: int = setting(1, "Score all clients every so many rounds.", allowed=AT_LEAST_ONE, panel=COMPUTE)
    checkpoint_every: int = setting(
        10,
        "Write a checkpoint every so many rounds, less often where that would take over a tenth of the time.",
        allowed=AT_LEAST_ONE,
        panel=COMPUTE,
        outcome=False,
    )

    def smoothing_of(self, round: int) -> float:
        """What a method's smoothing is multiplied by in a round: 1, and in the last quarter of the rounds less and less."""
        fallen = max(0.0, 1 - (1 - round / self.rounds) / FALLING)
        return float(self.smoothing_end**fallen)

    @classmethod
    def of(cls, config: Self | None, changes: Mapping[str, Any]) -> Self:
        """``config`` (the defaults, where it is None) with ``changes``; a name that is no setting is refused."""
        for name in changes:
            if name not in {f.name for f in fields(cls)}:
                raise unknown("setting of train called", name, [f.name for f in fields(cls)])
        return replace(config, **changes) if config is not None else cls(**changes)

    def without_effect(self) -> list[str]:
        """Settings that do nothing beside the others, one line each."""
        found = super().without_effect()
        if self.attackers != defaults()["attackers"] and self.attack == "none":
            found.append(f"attackers is {self.attackers}, but attack is none: it has no effect")
        for name in ("dp_clip", "dp_delta"):
            if getattr(self, name) != defaults()[name] and self.dp_noise == 0:
                found.append(f"{name} is {getattr(self, name):g}, but dp_noise is 0: it has no effect")
        for name, rules in AGGREGATOR_SETTINGS.items():
            if getattr(self, name) != defaults()[name] and self.aggregator not in rules:
                found.append(f"{name} is {getattr(self, name):g}, but the aggregator is {self.aggregator}: it has no effect")
        if self.best_by != defaults()["best_by"] and not self.validates:
            found.append(f"best_by is {self.best_by}, but early_stopping is 0 and keep is last: it has no effect")
        return found

    @property
    def validates(self) -> bool:
        """Are the models scored on validation data, too?"""
        return self.early_stopping > 0 or self.keep == "best"

    def check_aggregator(self, clients: int) -> None:
        """Refuse a rule that cannot work with so many clients in the federation."""
        a_round, needed = max(1, int(self.participation * clients + 0.5)), 2 * self.assumed_attackers + 3
        if self.aggregator in AGGREGATOR_SETTINGS["assumed_attackers"] and a_round < needed:
            raise ValueError(
                f"assumed_attackers is {self.assumed_attackers}, for which {self.aggregator} needs at least {needed} clients per "
                f"round, but there are {a_round}: lower it, or use another aggregator"
            )

    @property
    def local(self) -> LocalTraining:
        """What an engine needs of it."""
        return LocalTraining.taken_from(vars(self))

    def outcome(self) -> dict[str, Any]:
        """The settings that decide what comes out of a run, apart from the number of rounds, which may be raised later."""
        values = {f.name: getattr(self, f.name) for f in fields(TrainConfig) if f.metadata["outcome"] and f.name != "rounds"}
        return values | {"loss": loss_name(self.loss), "adapters": str(self.adapters)}


def loss_name(loss: Any) -> str:
    """What a record calls a loss: its name, or module:name of a user's own function."""
    if isinstance(loss, str):
        return loss
    named = loss if hasattr(loss, "__qualname__") else type(loss)
    return f"{named.__module__}:{named.__qualname__}"


def defaults() -> dict[str, Any]:
    """The default of every training setting: what a run made before a setting existed was trained with."""
    return {f.name: f.default for f in fields(TrainConfig) if f.default is not MISSING}
