"""A shorter study: fewer rounds, but still enough scored ones to draw a curve through."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import lcm

from fedfew.training.settings import Settings

FEWEST_ROUNDS = 2
SCORED = 10  # rounds that are scored at the least, where there are so many
SMOKE_TEST = 0.02  # below this scale a study shows that everything works, but not which method is best
ROWS = 100  # of a data set kept per client in a smoke test
FEW = 100  # clients at most: many have few rows each, and all of them stay
CHECKPOINTS = 20  # of a run, unless its settings say otherwise


def check(scale: float) -> None:
    if not 0 < scale <= 1:
        raise ValueError(f"--scale must be a number above 0 and at most 1 (0.05: a twentieth of the rounds), not {scale:g}")


def is_smoke_test(scale: float) -> bool:
    """Is the study so short that its scores mean nothing? Then one seed and a few rows will do, which take minutes on a CPU."""
    return scale < SMOKE_TEST


def smoke_test(settings: Settings) -> Settings:
    """With a few rows of the data set; small ones (digits) and a user's own stay whole."""
    from fedfew.data.reading import CLIENTS
    from fedfew.data.sources import SOURCES

    clients = settings.clients or CLIENTS
    if settings.sample is not None or settings.dataset not in SOURCES or clients > FEW:
        return settings
    return replace(settings, sample=ROWS * clients)


def rounds(settings: Settings, scale: float, side_by_side: Iterable[int] = ()) -> int:
    """So many rounds remain.

    side_by_side: local epochs of runs that this one is compared with at equal updates (rounds × local epochs), its own among
    them: updates become a multiple of all of these, so that they stay equal.
    """
    if scale == 1:
        return settings.rounds
    step = lcm(settings.local_epochs, *side_by_side)
    updates = max(FEWEST_ROUNDS, round(settings.rounds * settings.local_epochs * scale / step)) * step
    return updates // settings.local_epochs


def shortened(settings: Settings, rounds: int) -> Settings:
    """The settings with so many rounds instead, and scored often enough for them."""
    if rounds == settings.rounds:
        return settings
    return replace(settings, rounds=rounds, score_every=max(1, min(settings.score_every, rounds // SCORED)))


def checkpoint_every(rounds: int) -> int:
    """A kill costs a twentieth of a run, or ten times what a large checkpoint takes; Ctrl-C costs nothing, for it writes one."""
    return max(1, rounds // CHECKPOINTS)
