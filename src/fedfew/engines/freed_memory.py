"""What becomes of memory that training frees."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

KEPT = 256 * 2**20  # bytes of freed memory that stay with the process
KEPT_IN_A_RUN = 2**31 - 1  # about what a chunk of clients may take; the largest number that mallopt takes
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # names and numbers of the GNU C library's malloc.h
LARGEST_MMAP_THRESHOLD = 32 * 2**20  # bytes that it accepts
DEFAULT_MMAP_MAX = 65536
USERS_OWN = (  # environment variables for the same
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_MMAP_MAX_",
    "GLIBC_TUNABLES",
)


def keep_freed() -> None:
    """Let the process reuse memory that it has freed. By default the GNU C library returns a step's gradients and activations to
    the system at the end of each step and asks for them again in the next one, page by page. The setting concerns the whole
    process; one that the user has made in the environment stays. Other C libraries have no such setting."""
    library = _c_library()
    if library is not None:
        library.mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
        library.mallopt(M_TRIM_THRESHOLD, KEPT)


@contextmanager
def kept_in_a_run() -> Iterator[None]:
    """The same, within, for blocks of any size, such as the models of a chunk of clients; in the end what is free is returned."""
    library = _c_library()
    if library is None:
        yield
        return
    library.mallopt(M_MMAP_MAX, 0)  # a block that is mapped by itself is returned as soon as it is freed
    library.mallopt(M_TRIM_THRESHOLD, KEPT_IN_A_RUN)
    try:
        yield
    finally:
        library.mallopt(M_MMAP_MAX, DEFAULT_MMAP_MAX)
        library.mallopt(M_TRIM_THRESHOLD, KEPT)
        library.malloc_trim(0)


def _c_library() -> Any:
    """None where it has no such settings, or where the user has made them."""
    if sys.platform != "linux" or any(name in os.environ for name in USERS_OWN):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") else None
