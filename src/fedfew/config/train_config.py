"""All settings of training together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Literal, Self

from fedfew.config.federated import Federated
from fedfew.config.group import compute_setting, train_setting
from fedfew.config.local_training import LocalTraining, loss_name
from fedfew.config.privacy import Privacy
from fedfew.config.robustness import AGGREGATOR_SETTINGS, Robustness
from fedfew.config.server import Server
from fedfew.config.stopping import Stopping
from fedfew.util.spelling import unknown
from fedfew.util.validated import AT_LEAST_ONE, AT_LEAST_ONE_OR_NONE, POSITIVE, SEED

EngineName = Literal["auto", "stacked", "threaded", "sequential"]

FALLING = 0.25  # the last share of the rounds, over which a method's smoothing falls


@dataclass(frozen=True)  # the fields of the last base come first, in --help as well
class TrainConfig(Stopping, Server, Privacy, Robustness, Federated, LocalTraining):
    """All settings of :func:`fedfew.train` but the federation, the model and the method."""

    lr: float = train_setting(0.05, "Learning rate of the clients.", allowed=POSITIVE)
    batch_size: int = train_setting(20, "Samples per step.", allowed=AT_LEAST_ONE)
    rounds: int = train_setting(100, "Communication rounds.", allowed=AT_LEAST_ONE)
    seed: int = train_setting(0, "Seed of initial models and batches.", allowed=SEED)
    engine: EngineName = compute_setting(
        "auto",
        "stacked (all replicas at once), threaded (one per core), sequential, or auto: the fastest in a short trial.",
        allowed=EngineName,
        outcome=False,
    )
    device: str = compute_setting("auto", "cpu, cuda, cuda:N, or auto.", outcome=False)
    chunk: int | None = compute_setting(
        None,
        "Clients processed at once; chosen to fit in memory unless given. The result is the same.",
        allowed=AT_LEAST_ONE_OR_NONE,
        outcome=False,
    )
    score_every: int = compute_setting(1, "Score all clients every so many rounds.", allowed=AT_LEAST_ONE)
    checkpoint_every: int = compute_setting(
        10,
        "Write a checkpoint every so many rounds, less often where that would take over 2 % of the time.",
        allowed=AT_LEAST_ONE,
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


def defaults() -> dict[str, Any]:
    """The default of every training setting: what a run made before a setting existed was trained with."""
    return {f.name: f.default for f in fields(TrainConfig) if f.default is not MISSING}
