"""Cores on macOS, from sysctl. There is no affinity mvalue_of and no quota."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from llama_eagle.native.processor.cores import Cores


def read_cores(sysctl: Callable[[str], int | None] | None = None) -> Cores | None:
    """Return the cores, or None if the system reports no number. `sysctl`: returns the value of a name, or None."""
    value_of = sysctl or _sysctl
    n_physical = value_of("hw.physicalcpu")
    if not n_physical:
        return None
    n_logical = max(value_of("hw.logicalcpu") or n_physical, n_physical)
    n_fast = (
        value_of("hw.perflevel0.physicalcpu") or n_physical
    )  # level 0 is the fastest; Intel processors have no levels
    cores = tuple(frozenset(range(i, n_logical, n_physical)) for i in range(n_physical))
    every = frozenset(range(n_logical))
    fast: frozenset[int] = frozenset().union(*cores[: min(n_fast, n_physical)])
    return Cores(cores, fast, every)


def _sysctl(name: str) -> int | None:
    value, size = ctypes.c_int32(), ctypes.c_size_t(4)
    call = ctypes.CDLL(None, use_errno=True).sysctlbyname
    status = call(name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
    return value.value if status == 0 else None
