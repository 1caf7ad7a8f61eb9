"""The server's state after a round, until the round is complete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedfew.stack import Tree, from_named, named_leaves
from fedfew.training.checkpoint import State

NOT_NEGATIVE = ("running_var", "num_batches_tracked")  # PyTorch's names, in layers of BatchNorm and InstanceNorm


@dataclass(frozen=True)
class ServerStep:
    """What a round makes of the server's state."""

    server: Tree
    moments: Tree
    average: Tree
    median_loss: float | None  # over clients, of the least loss that each reported
    confirmed: float = 1.0  # by how much differences between losses are multiplied in the next round
    unused: tuple[int, ...] = ()  # rounds for which no client has used each model, if counted

    @classmethod
    def none(cls, state: State) -> ServerStep:
        """A step that leaves the server as it is."""
        return cls(state.server, state.moments, state.average, state.median_loss, state.confirmed, state.unused)

    @property
    def served(self) -> Tree:
        return self.average or self.server

    def complete(self, state: State, round: int) -> None:
        """Take the step: the round is done."""
        state.server, state.moments, state.average, state.round = self.server, self.moments, self.average, round
        state.median_loss, state.confirmed, state.unused = self.median_loss, self.confirmed, self.unused


def without_negative_statistics(server: Tree, of_models: Callable[[str], bool]) -> Tree:
    """The server's state, the running variances and counts of batches in its models (by path) no less than 0. A forged update or
    the noise of differential privacy can make them negative: then every client that is sent the model finds NaN, or divides by 0.
    """
    found = dict(named_leaves(server))
    at = [path for path in found if path.rpartition("/")[2].rpartition(".")[2] in NOT_NEGATIVE and of_models(path)]
    return from_named(found | {path: found[path].clamp_min(0) for path in at}) if at else server
