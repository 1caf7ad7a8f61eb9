"""Rules of aggregation that withstand false updates, and simulated attacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedfew.config.group import Group, train_setting
from fedfew.util.validated import AT_LEAST_ONE, POSITIVE, ZERO_OR_MORE

Aggregator = Literal["mean", "median", "trimmed-mean", "geometric-median", "krum", "multi-krum", "norm-bound"]
Attack = Literal["none", "label-flip", "sign-flip", "forged-loss", "noise"]

AGGREGATOR_SETTINGS = {"trim": ("trimmed-mean",), "assumed_attackers": ("krum", "multi-krum"), "norm_bound": ("norm-bound",)}


@dataclass(frozen=True)
class Robustness(Group):
    """How updates are aggregated, and which attack is simulated."""

    aggregator: Aggregator = train_setting(
        "mean",
        "How the clients' updates become one: mean, or robust against false ones: median, trimmed-mean, geometric-median, krum, "
        "multi-krum or norm-bound. All but mean keep a round's updates in memory.",
        allowed=Aggregator,
    )
    trim: float = train_setting(
        0.2,
        "With aggregator=trimmed-mean: fraction of the weight that is left out at each end.",
        allowed=(lambda value: 0 <= value < 0.5, "in [0, 0.5)"),
    )
    assumed_attackers: int = train_setting(
        1, "With aggregator=krum or multi-krum: clients per round that may send false updates.", allowed=ZERO_OR_MORE
    )
    norm_bound: float = train_setting(
        1.0,
        "With aggregator=norm-bound: longer updates are shortened to this many times the round's median length.",
        allowed=POSITIVE,
    )
    attack: Attack = train_setting(
        "none",
        "Simulate an attack: label-flip, sign-flip, forged-loss or noise (docs/robustness.md). Attackers get no scores.",
        allowed=Attack,
    )
    attackers: int = train_setting(1, "With attack: how many clients, drawn by the seed.", allowed=AT_LEAST_ONE)

    def without_effect(self) -> list[str]:
        found = super().without_effect()
        if self.changed("attackers") and self.attack == "none":
            found.append(f"attackers is {self.attackers}, but attack is none: it has no effect")
        for name, rules in AGGREGATOR_SETTINGS.items():
            if self.changed(name) and self.aggregator not in rules:
                found.append(f"{name} is {getattr(self, name):g}, but the aggregator is {self.aggregator}: it has no effect")
        return found
