"""When a run writes a checkpoint."""

from __future__ import annotations

import time
from pathlib import Path

from fedfew.training import checkpoint
from fedfew.training.checkpoint import State

PATIENCE = 50  # the next checkpoint: not before so many times the seconds have passed that the last one took


class CheckpointWriter:
    """Writes the states of one run into its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.round = -1  # of the last checkpoint
        self._took = 0.0  # seconds
        self._finished = 0.0  # when

    def write(self, state: State, begin: float) -> None:
        """begin: when the work for this checkpoint began."""
        checkpoint.write(self.folder, state)
        self.round, self._finished = state.round, time.perf_counter()
        self._took = self._finished - begin

    def worth_writing(self) -> bool:
        """Writing must not take more than about 2 % of the time: rounds of small models are faster than writing a checkpoint.
        A run that is stopped writes its last round in any case; one that is killed loses at most this interval."""
        return time.perf_counter() - self._finished >= PATIENCE * self._took
