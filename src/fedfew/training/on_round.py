"""What a run reports after every round, and the functions that it calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfew.training.checkpoint import State
from fedfew.training.history import History


@dataclass(frozen=True)
class Progress:
    """What a run reports after every round."""

    round: int
    rounds: int
    loss: float  # mean over clients of the least loss they reported
    served: float | None  # mean test scores (accuracy, R², …) of the last scored round
    adapted: float | None
    seconds: float  # since this call of train began
    events: list[str]  # lines about what happened in this round
    history: History | None = None  # all scored rounds so far; the newest is this one if its ``round`` is
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the run
    stopped: bool = False  # early_stopping ends the run with this round

    @classmethod
    def of(cls, state: State, rounds: int, loss: float, seconds: float, events: list[str], stopped: bool) -> Progress:
        """state: after the round."""
        history, served, adapted = state.history, None, None
        if len(history):
            served, adapted = (_mean(history.last_scores(which)) for which in ("served", "adapted"))
        return cls(state.round, rounds, loss, served, adapted, seconds, events, history, state.settings, stopped)

    @property
    def done(self) -> bool:
        return self.round == self.rounds or self.stopped


OnRound = Callable[[Progress], Any]  # called after a round; the run ends there if it returns "stop"


def stop_asked(on_round: Sequence[OnRound], progress: Progress) -> bool:
    """Call all of them; whether one asks the run to end."""
    answers = [call(progress) for call in on_round]
    return "stop" in [answer for answer in answers if isinstance(answer, str)]


def _mean(scores: NDArray[Any]) -> float:
    """Over the clients that have a score."""
    known = scores[~np.isnan(scores)]
    return float(known.mean()) if len(known) else math.nan
