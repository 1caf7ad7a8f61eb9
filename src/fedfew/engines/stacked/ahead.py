"""What the next round's first epoch draws, drawn while a GPU still works on this round.

Orders and augmentation are some hundred small operations, for which the GPU would wait between two rounds. They follow from the
numbers of the round alone, so they can be started as soon as this round's steps are, where the same clients train again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from itertools import chain

import torch

from fedfew.engines.base import Pass
from fedfew.local import LocalEpochs
from fedfew.stack import leaves


class Ahead:
    """The first passes of works to come, drawn by ``passes``."""

    def __init__(self, passes: Callable[[LocalEpochs], Iterator[Pass]]) -> None:
        self._passes = passes
        self._last: dict[Hashable, LocalEpochs] = {}  # of each kind, without its models
        self._drawn: dict[Hashable, tuple[LocalEpochs, Pass]] = {}  # for which work, and its first pass

    def of(self, work: LocalEpochs) -> Iterator[Pass]:
        """The passes of this work, the first of them drawn already where it was foreseen."""
        foreseen, first = self._drawn.pop(_kind(work), (None, None))
        if foreseen is None or first is None or not _follows(work, foreseen, rounds=0):
            return self._passes(work)
        return chain([first], self._passes(replace(work, first_epoch=work.first_epoch + 1, epochs=work.epochs - 1)))

    def draw(self, work: LocalEpochs) -> Pass | None:
        """Where this work was that of the last round again: the first pass of the next round."""
        kind = _kind(work)
        last, self._last[kind] = self._last.get(kind), replace(work, params={}, context={})
        if last is None or not work.epochs or not _follows(work, last, rounds=1):
            return None
        first = next(self._passes(replace(work, round=work.round + 1, epochs=1)))
        self._drawn[kind] = replace(self._last[kind], round=work.round + 1), first
        return first


def _kind(work: LocalEpochs) -> Hashable:
    """A method may train several times in a round."""
    return leaves(work.params)[0].shape[1], work.first_epoch, work.epochs


def _follows(work: LocalEpochs, other: LocalEpochs, rounds: int) -> bool:
    """Do the same clients train on the same samples, so many rounds later, none of them weighed?"""
    plain = work.weights is None and other.weights is None
    again = work.samples is other.samples and torch.equal(work.clients, other.clients)
    return plain and again and work.round == other.round + rounds
