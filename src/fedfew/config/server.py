"""What the server does with updates and models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedfew.config.group import Group, train_setting
from fedfew.util.validated import BELOW_ONE, NOT_NEGATIVE, POSITIVE, SHARE, ZERO_OR_MORE

ServerOptimizerName = Literal["none", "momentum", "adam", "yogi", "adagrad"]
Serve = Literal["best", "mixture"]


@dataclass(frozen=True)
class Server(Group):
    """The step of the server, and which of its models a client is served."""

    server_optimizer: ServerOptimizerName = train_setting(
        "none",
        "What the server does with a round's update: none (adds it), momentum (FedAvgM), adam, yogi or adagrad.",
        allowed=ServerOptimizerName,
    )
    server_lr: float = train_setting(1.0, "Step of the server optimiser (adam, yogi, adagrad: try 0.01).", allowed=POSITIVE)
    server_momentum: float = train_setting(0.9, "β₁ of the server optimiser; no effect with none.", allowed=BELOW_ONE)
    server_average: float = train_setting(
        0.0,
        "Serve an exponential average of the server's models over rounds; the weight of the past (0: the newest models).",
        allowed=BELOW_ONE,
    )
    serve: Serve = train_setting(
        "best",
        "With several candidate models: best (the one with the least loss on the client's training data) or mixture (their "
        "predictions averaged, weights ∝ exp(−loss / temperature)).",
        allowed=Serve,
    )
    temperature: float = train_setting(
        0.5, "With serve=mixture: → 0 is the best model alone, → ∞ all alike. In units of loss.", allowed=POSITIVE
    )
    smoothing_end: float = train_setting(
        1.0,
        "FedFew's μ in the last round, as a share of mu: it falls over the last quarter of the rounds, so that models specialise "
        "in the end. 1: constant.",
        allowed=SHARE,
    )
    check_share: float = train_setting(
        0.0,
        "Share of each client's training samples (of n at most √n) that are never trained on: FedFew counts differences between "
        "training losses as far as the losses there confirm them. 0: it counts all.",
        allowed=BELOW_ONE,
    )
    smoothing_spread: float = train_setting(
        0.0,
        "With check_share: FedFew's μ between the models of a client is at most this many times the spread of their losses, so "
        "that nearly equal models specialise, too. 0: μ alone.",
        allowed=NOT_NEGATIVE,
    )
    restart_unused: int = train_setting(
        0,
        "With several models on the server: one that no client has used for so many rounds starts again near the model of the "
        "client that is served worst; 0: never.",
        allowed=ZERO_OR_MORE,
    )

    def without_effect(self) -> list[str]:
        found = super().without_effect()
        if self.server_optimizer == "none":
            idle = [name for name in ("server_lr", "server_momentum") if self.changed(name)]
            found += [f"{name} is {getattr(self, name):g}, but server_optimizer is none: it has no effect" for name in idle]
        if self.server_optimizer in ("adam", "yogi") and self.server_lr >= 1:
            found.append(f"server_lr is {self.server_lr:g}, as a rule far too large for {self.server_optimizer}: try 0.01")
        if self.changed("temperature") and self.serve != "mixture":
            found.append(f"temperature is {self.temperature:g}, but serve is {self.serve}: it has no effect")
        return found
