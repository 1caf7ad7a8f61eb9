"""Ctrl-C and other signals, where they must wait, or mean something else for a while. Only the main thread gets any."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any


@contextmanager
def handled_by(handler: Any, *numbers: signal.Signals) -> Iterator[None]:
    """Within: these signals are handled so, as by ``signal.signal``."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


@contextmanager
def held_back() -> Iterator[None]:
    """Hold a Ctrl-C back until what is within is through; then it does what it would have done."""
    with holdable() as held, held():
        yield


@contextmanager
def holdable() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Within: what is yielded does as :func:`held_back`, any number of times. To set a handler takes longer than what is held in
    each of many rounds."""
    handler: Any = signal.getsignal(signal.SIGINT)
    if not callable(handler):  # ignored, or not Python's
        yield nullcontext
        return
    holding, came = False, list[tuple[Any, ...]]()

    def handle(*given: Any) -> None:
        if holding:
            came.append(given)
        else:
            handler(*given)

    @contextmanager
    def held() -> Iterator[None]:
        nonlocal holding
        came.clear()
        holding = True
        try:
            yield
        finally:
            holding = False
        if came:
            handler(*came[0])

    with handled_by(handle, signal.SIGINT):
        yield held
