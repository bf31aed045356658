"""Memory of the C library on a CPU."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # of glibc's malloc.h
NEVER = 2**31 - 1


def keep_freed_memory(largest: int | None = None, kept: int = NEVER) -> None:
    """Make glibc keep freed memory for the next array. No effect with other C libraries.

    By default glibc returns large blocks to the system immediately, and the kernel clears every page again for the next
    array, which takes a considerable part of the time. This applies to the whole process, so it is for programs.

    largest: bytes of the largest block that is kept; None: any. kept: most bytes at the end of the heap.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(*((M_MMAP_MAX, 0) if largest is None else (M_MMAP_THRESHOLD, largest)))
        mallopt(M_TRIM_THRESHOLD, kept)


def return_freed_memory() -> None:
    """Return to the system what `keep_freed_memory` has kept so far. No effect with other C libraries."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
