"""Ctrl-C and other signals, where they must wait, or mean something else for a while. Only the main thread gets any."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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
    handler: Any = signal.getsignal(signal.SIGINT)
    if not callable(handler):  # ignored, or not Python's
        yield
        return
    held: list[tuple[Any, ...]] = []
    with handled_by(lambda *given: held.append(given), signal.SIGINT):
        yield
    if held:
        handler(*held[0])
