"""The settings of training, each declared once: default, description, what is allowed.

:func:`fedfew.train` takes them as keywords, the command line as flags, study files and Flower's run configuration as keys.
Imports nothing but :mod:`fedfew.util`, so that ``fedfew --help`` need not wait for torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Literal, Self, get_args

from fedfew.util.spelling import unknown
from fedfew.util.validated import (
    AT_LEAST_ONE,
    AT_LEAST_ONE_OR_NONE,
    BELOW_ONE,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    WHOLE,
    one_of,
    setting,
    validate,
)

Augment = Literal["none", "flip", "crop-flip"]
BatchNorm = Literal["average", "local", "local-statistics", "batch"]
LabelPrior = Literal["none", "client"]
Precision = Literal["fp32", "tf32", "bf16"]
Serve = Literal["best", "mixture"]
ServerOptimizerName = Literal["none", "momentum", "adam", "yogi", "adagrad"]
EngineName = Literal["auto", "stacked", "threaded", "sequential"]

TRAINING, COMPUTE = "How to train", "Hardware, scoring and checkpoints"


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains: SGD as in PyTorch, started afresh each round."""

    lr: float = setting(about="Learning rate of the clients.", allowed=POSITIVE, panel=TRAINING)
    batch_size: int = setting(about="Samples per step.", allowed=AT_LEAST_ONE, panel=TRAINING)
    local_epochs: int = setting(1, "Epochs per client and round.", allowed=AT_LEAST_ONE, panel=TRAINING)
    momentum: float = setting(0.0, "Momentum of the clients' SGD.", allowed=BELOW_ONE, panel=TRAINING)
    weight_decay: float = setting(0.0, "Weight decay of the clients' SGD.", allowed=NOT_NEGATIVE, panel=TRAINING)
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
    batch_norm: BatchNorm = setting(
        "average",
        "BatchNorm layers: average (statistics travel with the parameters), local (each client keeps these layers, FedBN), "
        "local-statistics (each client keeps the statistics alone), or batch (no running statistics).",
        allowed=one_of(*get_args(BatchNorm)),
        panel=TRAINING,
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

    @classmethod
    def of(cls, config: Self | None, changes: Mapping[str, Any]) -> Self:
        """``config`` (the defaults, where it is None) with ``changes``; a name that is no setting is refused."""
        for name in changes:
            if name not in {f.name for f in fields(cls)}:
                raise unknown("setting of train called", name, [f.name for f in fields(cls)])
        return replace(config, **changes) if config is not None else cls(**changes)

    @property
    def local(self) -> LocalTraining:
        """What an engine needs of it."""
        return LocalTraining.taken_from(vars(self))

    def outcome(self) -> dict[str, Any]:
        """The settings that decide what comes out of a run, apart from the number of rounds, which may be raised later."""
        return {f.name: getattr(self, f.name) for f in fields(TrainConfig) if f.metadata["outcome"] and f.name != "rounds"}


def defaults() -> dict[str, Any]:
    """The default of every training setting: what a run made before a setting existed was trained with."""
    return {f.name: f.default for f in fields(TrainConfig) if f.default is not MISSING}
