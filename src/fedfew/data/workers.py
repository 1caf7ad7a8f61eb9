"""A function over many items: in threads, or by means of processes where the time is spent in Python."""

from __future__ import annotations

import queue
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from fedfew.imaging.process import DecodingProcess
from fedfew.util.cores import cores

T = TypeVar("T")
MOST_PROCESSES = 16  # this process reads all files, and cannot keep more of them busy


def in_threads(function: Callable[[int], T], items: Sequence[int]) -> Iterator[T]:
    """The results, in order."""
    with ThreadPoolExecutor(cores()) as pool:
        yield from pool.map(function, items)


def in_processes(function: Callable[[DecodingProcess, int], T], here: Callable[[int], T], items: Sequence[int]) -> Iterator[T]:
    """The results, in order. The function gets a process of its own until it returns. Where no process can be
    started, ``here`` is called instead, in threads."""
    if not items or cores() == 1:
        yield from map(here, items)
        return
    processes: list[DecodingProcess] = []
    try:
        why_not = _start(processes, min(cores(), MOST_PROCESSES, len(items)))
        if why_not:
            warnings.warn(f"images are decoded in threads, which is slower: {why_not}", stacklevel=2)
            yield from in_threads(here, items)
        else:
            yield from _by(processes, function, items)
    finally:
        for process in processes:
            process.close()


def _start(processes: list[DecodingProcess], count: int) -> str:
    """Start processes, which are added to the list; returns why that is not possible."""
    if not sys.executable or getattr(sys, "frozen", False):
        return "this program is no Python interpreter that could be started again"
    try:
        for _ in range(count):
            processes.append(DecodingProcess())
    except OSError as error:
        return f"no process can be started ({error})"
    if not all(process.wait_until_ready() for process in processes):
        return "the processes that were started for it ended at once"
    return ""


def _by(processes: list[DecodingProcess], function: Callable[[DecodingProcess, int], T], items: Sequence[int]) -> Iterator[T]:
    idle: queue.SimpleQueue[DecodingProcess] = queue.SimpleQueue()
    for process in processes:
        idle.put(process)

    def work(item: int) -> T:
        process = idle.get()
        try:
            return function(process, item)
        finally:
            idle.put(process)

    with ThreadPoolExecutor(len(processes)) as pool:
        try:
            yield from pool.map(work, items)
        except BaseException:  # an error, Ctrl-C, or the rest is not needed: the threads must not wait for it
            for process in processes:
                process.kill()
            raise
