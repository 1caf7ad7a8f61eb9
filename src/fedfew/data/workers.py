"""A function over many items: in threads, or in processes where the time is spent in Python."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
_function: Callable[[Any], Any] | None = None  # what the processes call: they inherit it, so that it need not be pickled


def in_threads(function: Callable[[int], T], items: Sequence[int]) -> Iterator[T]:
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        yield from pool.map(function, items)


def can_fork() -> bool:
    """Elsewhere a process starts empty: reading the data and importing everything again would cost more than it saves."""
    return sys.platform == "linux" and (os.cpu_count() or 1) > 1 and not multiprocessing.current_process().daemon


def in_processes(function: Callable[[int], T], items: Sequence[int]) -> Iterator[T]:
    """The results, in order. The processes see this one's memory as it is now; what they write is seen here only in arrays
    of :func:`shared_bytes`, and in what the function returns."""
    global _function
    _function = function
    context = multiprocessing.get_context("fork")
    try:
        with ProcessPoolExecutor(min(os.cpu_count() or 1, len(items)), context, _ignore_ctrl_c) as pool:
            yield from pool.map(_call, items)
    finally:
        _function = None


def shared_bytes(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Zeros that forked processes and this one write into together."""
    length = int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(mmap.mmap(-1, max(1, length)), np.uint8)[:length].reshape(shape)


def _call(item: int) -> Any:
    assert _function is not None
    return _function(item)


def _ignore_ctrl_c() -> None:
    """This process stops them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
