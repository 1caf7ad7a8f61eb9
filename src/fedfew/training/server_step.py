"""The server's state after a round, until the round is complete."""

from __future__ import annotations

from dataclasses import dataclass

from fedfew.stack import Tree
from fedfew.training.checkpoint import State


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
