"""What becomes of memory that a step of training frees."""

from __future__ import annotations

import ctypes
import os
import sys

KEPT = 256 * 2**20  # bytes of freed memory that stay with the process
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # names and numbers of the GNU C library's malloc.h
LARGEST_MMAP_THRESHOLD = 32 * 2**20  # bytes that it accepts
USERS_OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")  # environment variables for the same


def keep_freed() -> None:
    """Let the process reuse memory that it has freed. By default the GNU C library returns a step's gradients and activations to
    the system at the end of each step and asks for them again in the next one, page by page. The setting concerns the whole
    process; one that the user has made in the environment stays. Other C libraries have no such setting."""
    if sys.platform != "linux" or any(name in os.environ for name in USERS_OWN):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
        mallopt(M_TRIM_THRESHOLD, KEPT)
