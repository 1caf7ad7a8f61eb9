"""Where the time before the end of a first round goes: seconds within named functions, without those of others within them."""

from __future__ import annotations

import functools
import importlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

FUNCTIONS = {
    "check the settings": "fedfew.training.setup:Setup.of",
    "start CUDA, move the data": "fedfew.training.api:_placed",
    "trial": "fedfew.engines.choice:_trial",
    "trial, stacked": "fedfew.engines.choice:_sure_stack",
    "trial, sequential": "fedfew.engines.sequential:Sequential._train",
    "record": "fedfew.engines.stacked.traced:recorded",
    "replays as functions": "fedfew.engines.stacked.traced:as_function",
    "compile kernels": "triton.compiler:compile",
    "load kernels": "triton.compiler:CompiledKernel._init_handles",
    "capture": "fedfew.engines.stacked.captured:CudaGraphs._captured",
    "train": "fedfew.engines.stacked.engine:Stacked._train",
    "losses and scores": "fedfew.engines.base:Engine.scores",
}


class Spans:
    """Seconds by name. What runs in another thread than the first counts apart: whoever waits for it counts, too."""

    def __init__(self) -> None:
        self._watched = threading.get_ident()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._inner = threading.local()

    def watch(self) -> None:
        for name, place in FUNCTIONS.items():
            module_name, _, path = place.partition(":")
            try:
                owner: Any = importlib.import_module(module_name)
            except ModuleNotFoundError:  # Triton, where there is no GPU
                continue
            *outer, last = path.split(".")
            for part in outer:
                owner = getattr(owner, part)
            plain = vars(owner)[last]
            timed = self._timed(name, plain.__func__ if isinstance(plain, classmethod) else plain)
            setattr(owner, last, classmethod(timed) if isinstance(plain, classmethod) else timed)

    def so_far(self) -> dict[str, float]:
        """Longest first."""
        return dict(sorted(self._seconds.items(), key=lambda item: -item[1]))

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            outer, self._inner.seconds = getattr(self._inner, "seconds", 0.0), 0.0
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                took = time.perf_counter() - begin
                key = name if threading.get_ident() == self._watched else f"{name}, in other threads"
                self._seconds[key] += took - self._inner.seconds
                self._inner.seconds = outer + took

        return timed
