"""Kernels compiled side by side.

Triton compiles a kernel when it is first started, and the next one after that. While a step is recorded, what its kernels compute
does not matter: the recording is run afterwards. So there they are not started but only compiled, in threads, and a kernel that
is started waits for its own compilation alone. This uses Triton's ``AsyncCompileMode``; without it kernels are started as usual.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

_compiling: dict[Any, Any] = {}  # by kernel: the mode of Triton that its compilations under way were submitted in
_thread = threading.local()


def start(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> bool:
    """Start a kernel of Triton; within :func:`compiled_only` have it compiled. Was it started?"""
    only_compiled: list[Any] | None = getattr(_thread, "only_compiled", None)
    mode = None if only_compiled is None else _mode(kernel)
    if only_compiled is not None and mode is not None:
        only_compiled.append(kernel)
        with _submitting_to(mode):
            kernel.warmup(*args, grid=grid, **options)
        return False
    _wait_for(kernel)
    kernel[grid](*args, **options)
    return True


def finish_compiling() -> None:
    """Wait for all kernels."""
    for kernel in list(_compiling):
        _wait_for(kernel)


def _wait_for(kernel: Any) -> None:
    mode = _compiling.pop(kernel, None)
    if mode is not None:
        mode.__exit__(None, None, None)  # what failed is compiled again when the kernel is started, and fails there


@contextmanager
def compiled_only() -> Iterator[list[Any]]:
    """Within, in this thread: kernels are not started but compiled, and those are listed. What they would write is undefined."""
    outer, kernels = getattr(_thread, "only_compiled", None), list[Any]()
    _thread.only_compiled = kernels
    try:
        yield kernels
    finally:
        _thread.only_compiled = outer


def compiled_in_place() -> list[Any]:
    """The kernels that were compiled in place of being started, in the innermost :func:`compiled_only` of this thread."""
    kernels: list[Any] | None = getattr(_thread, "only_compiled", None)
    return [] if kernels is None else kernels


def _mode(kernel: Any) -> Any:
    """In which this kernel is compiled in threads; None where that is not possible, as in Triton's interpreter."""
    import triton

    if not isinstance(kernel, triton.JITFunction) or not hasattr(triton, "AsyncCompileMode"):
        return None
    return _compiling.setdefault(kernel, triton.AsyncCompileMode(_Threads(), ignore_errors=True))


@contextmanager
def _submitting_to(mode: Any) -> Iterator[None]:
    """The mode's own ``with`` would wait for its compilations at the end."""
    from triton.runtime._async_compile import active_mode

    before = active_mode.set(mode)
    try:
        yield
    finally:
        active_mode.reset(before)


class _Threads(Executor):
    """Compiles and loads in threads."""

    def submit(self, compiled: Callable[..., Any], /, *_: Any, **__: Any) -> Future[Any]:
        device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
        return _pool().submit(_loaded, compiled, device)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(16, os.cpu_count() or 1), "fedfew-compile")


def _loaded(compiled: Callable[[], Any], device: int | None) -> Any:
    """A compiled kernel, on the device: some versions of Triton compile C for that, which takes as long again."""
    kernel = compiled()
    if device is not None:
        with torch.cuda.device(device):
            kernel.run  # noqa: B018  # a property, which loads
    return kernel
