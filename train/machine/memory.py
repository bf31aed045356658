"""Memory of the C library on a CPU."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's malloc.h
NEVER = 2**31 - 1


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for the next tensor. No effect with other C libraries.

    By default glibc returns large blocks to the system immediately, and the kernel clears every page again in the next
    step, which takes a considerable part of the step's time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, NEVER)
