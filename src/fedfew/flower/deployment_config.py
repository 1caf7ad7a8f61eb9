"""The configuration of a run on a network: ``[tool.flwr.app.config]`` and ``flwr run --run-config``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, TypeVar, get_type_hints

from fedfew import methods
from fedfew.flower.secure.fixed_point import MIN_CLIENTS
from fedfew.flower.secure.weighting import check_method
from fedfew.methods import Method
from fedfew.methods.compression import WAYS, Way
from fedfew.training import settings
from fedfew.util.conversion import convert
from fedfew.util.spelling import unknown

T = TypeVar("T")
SIMULATED = ("data", "partition", "data-seed")  # read by the nodes of a simulation, which have no configuration of their own


def _setting(default: T, about: str) -> T:
    value: T = field(default=default, metadata={"about": about})
    return value


@dataclass(frozen=True)
class DeploymentConfig:
    """What is trained, and how the server waits for sites. A key of the configuration is a name here with hyphens."""

    method: str = _setting("fedfew", "Method, its settings after a colon: fedfew:models=3,mu=0.01.")
    model: str = _setting("mlp", "A model's name, or module:factory in the app.")
    clients: int = _setting(4, "How many clients the federation has, M; each site is one of them, 0 … M − 1.")
    rounds: int = _setting(10, "Rounds of communication.")
    local_epochs: int = _setting(1, "Passes over a client's data in a round.")
    batch_size: int = _setting(20, "Samples in a step.")
    lr: float = _setting(0.05, "Learning rate.")
    momentum: float = _setting(0.0, "Momentum of SGD.")
    weight_decay: float = _setting(0.0, "Weight decay of SGD.")
    batch_norm: str = _setting("average", "Statistics of BatchNorm layers: average, local (FedBN), or batch.")
    augment: str = _setting("none", "What happens to images in training: none, flip, or crop-flip.")
    participation: float = _setting(1.0, "Share of the clients that are there, drawn anew each round, that take part.")
    seed: int = _setting(0, "Seed of initial models and batches.")
    score_every: int = _setting(10, "Score all clients every so many rounds (a second exchange) and after the last.")
    checkpoint_every: int = _setting(1, "Write a checkpoint every so many rounds.")
    folder: str = _setting("runs/flower", "The run's folder at the server, relative to where the SuperLink was started.")
    quorum: float = _setting(0.5, "Fraction of a round's clients that must reply for it to count.")
    deadline: float = _setting(600.0, "Seconds that a round waits for replies.")
    attempts: int = _setting(3, "How often a round without a quorum is tried before the run stops.")
    gather: float = _setting(120.0, "Seconds to wait for all sites before starting with those that have joined.")
    clip_norm: float = _setting(0.0, "Updates with a larger norm are shortened to it. 0: off.")
    refuse_ratio: float = _setting(100.0, "Updates this many times longer than the round's median are refused. 0: off.")
    max_samples: int = _setting(10_000_000, "A site that reports more training samples is refused.")
    compression: Way = _setting(  # noqa: RUF009  # it makes a field(), as for the others
        "none", "Compression of updates: none, bf16 (half the bytes) or int8 (a quarter)."
    )

    aggregation: str = _setting("plain", "plain, or masked (experimental): the server learns only the sum of updates.")
    mask_clip: float = _setting(1024.0, "With masked: weighted values of an update beyond this are clipped to it.")

    def __post_init__(self) -> None:
        checks = {
            "clients": (self.clients >= 1, "≥ 1"),
            "rounds": (self.rounds >= 1, "≥ 1"),
            "local_epochs": (self.local_epochs >= 1, "≥ 1"),
            "batch_size": (self.batch_size >= 1, "≥ 1"),
            "lr": (0 < self.lr < math.inf, "a finite number > 0"),
            "momentum": (0 <= self.momentum < 1, "in [0, 1)"),
            "weight_decay": (0 <= self.weight_decay < math.inf, "a finite number ≥ 0"),
            "participation": (0 < self.participation <= 1, "in (0, 1]"),
            "score_every": (self.score_every >= 1, "≥ 1"),
            "checkpoint_every": (self.checkpoint_every >= 1, "≥ 1"),
            "quorum": (0 < self.quorum <= 1, "in (0, 1]"),
            "deadline": (0 < self.deadline < math.inf, "a finite number > 0"),
            "attempts": (self.attempts >= 1, "≥ 1"),
            "gather": (0 <= self.gather < math.inf, "a finite number ≥ 0"),
            "clip_norm": (0 <= self.clip_norm < math.inf, "a finite number ≥ 0"),
            "refuse_ratio": (self.refuse_ratio == 0 or 1 < self.refuse_ratio < math.inf, "0 or a finite number > 1"),
            "max_samples": (self.max_samples >= 1, "≥ 1"),
            "compression": (self.compression in WAYS, f"one of {', '.join(WAYS)}"),
            "aggregation": (self.aggregation in ("plain", "masked"), "plain or masked"),
            "mask_clip": (1e-9 <= self.mask_clip <= 1e9, "a number from 1e-9 to 1e9"),
        }
        for name, (ok, wanted) in checks.items():
            if not ok:
                raise ValueError(f"{name.replace('_', '-')} must be {wanted}, not {getattr(self, name)!r}")
        method = self.make_method()
        method.check_against(self.clients)
        if self.aggregation == "masked":
            check_method(method)
            if self.compression != "none":
                raise ValueError(f"compression must be none where aggregation is masked, not {self.compression!r}")
            if self.clients < MIN_CLIENTS:
                raise ValueError(f"clients must be ≥ {MIN_CLIENTS} where aggregation is masked, not {self.clients}")

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> DeploymentConfig:
        """From a run's configuration. Keys with a dot (from tables of your own) are ignored; others must be known."""
        hints = get_type_hints(cls)
        known = {f.name.replace("_", "-"): f.name for f in fields(cls)}
        values = {}
        for key, value in config.items():
            if key in known:
                values[known[key]] = convert(value, hints[known[key]], key)
            elif "." not in key and key not in SIMULATED:
                raise unknown("setting of a run called", key, [*known, *SIMULATED])
        return cls(**values)

    def make_method(self) -> Method:
        """The method with its settings."""
        return _method(self.method)

    def for_sites(self) -> dict[str, Any]:
        """The settings that sites need to train, as JSON values."""
        names = ("local_epochs", "batch_size", "lr", "momentum", "weight_decay", "batch_norm", "augment", "seed", "clients")
        return {name: getattr(self, name) for name in (*names, "compression", "aggregation", "clip_norm")} | {
            "method": self.make_method().settings()
        }


@lru_cache(maxsize=32)  # a method's settings are read from its source, which takes a while
def _method(spec: str) -> Method:
    """The method of a text such as ``fedfew:models=3,mu=0.01``."""
    name, _, rest = spec.partition(":")
    given: dict[str, Any] = {"name": name.strip()}
    for piece in filter(None, (p.strip() for p in rest.split(","))):
        key, equals, value = piece.partition("=")
        given[key.strip()] = value.strip() if equals else "true"
    resolved = settings.resolve({}, {}, {"method": given})
    return methods.make(resolved.method, **resolved.method_settings)
