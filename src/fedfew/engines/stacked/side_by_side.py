"""Parts of a small stack side by side, each on a core of its own.

Where every operation of a small stack is itself divided among cores, they wait for each other after each, hand small tensors to
and fro, and wait for long where another program takes one of them away. Parts that have clients of their own meet once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate, pairwise
from typing import TypeVar

import torch

from fedfew.util.cores import torch_threads

T = TypeVar("T")
LEAST = 2**22  # multiplications, as of a forward pass, that are worth a part of their own


class SideBySide:
    """Divides clients into as many parts as there are cores, and calls what is to be done for each. cores: 1 on a GPU, which
    computes what it is given one after the other."""

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._pool: ThreadPoolExecutor | None = None
        self._used = False

    def parts(self, sizes: Sequence[int], multiplications: int) -> list[slice]:
        """Clients of these sizes, one after the other, in parts of about as many samples."""
        number = max(1, min(self._cores, len(sizes), multiplications // LEAST))
        up_to = list(accumulate(sizes))
        ends = (1 + bisect_left(up_to, up_to[-1] * part / number) for part in range(1, number))
        return [slice(begin, end) for begin, end in pairwise(sorted({0, *ends, len(sizes)}))]

    def __call__(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """What each returns. They must neither share tensors that one of them writes nor differentiate."""
        if self._cores == 1:
            return [call() for call in calls]
        self._used = True
        if len(calls) > 1 and self._pool is None:
            self._pool = ThreadPoolExecutor(self._cores - 1, "fedfew", initializer=_ready)
        with torch_threads(1):
            if self._pool is None or len(calls) == 1:
                return [call() for call in calls]
            others = [self._pool.submit(call) for call in calls[1:]]
            try:
                first = calls[0]()
            finally:  # after an error or a Ctrl-C nothing writes on
                for other in others:
                    other.exception()  # waits for its end
        return [first, *(other.result() for other in others)]

    def within_a_round(self) -> AbstractContextManager[None]:
        """Within: no operation is itself divided among cores. A core that waits for its part of the next one would be taken from
        the parts."""
        return torch_threads(1) if self._used else nullcontext()


def _ready() -> None:
    """In a new thread, which has settings of its own."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
