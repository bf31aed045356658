"""The number of CPU threads, for all front ends."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from llama_eagle.errors import UsageError
from llama_eagle.native.limits import MAX_THREADS
from llama_eagle.native.processor.cores import Cores
from llama_eagle.native.processor.detect import read_cores

AUTO = 0  # the same as "auto" and None

_warned: set[int] = set()


def default_threads() -> int:
    """Return one thread per performance core within affinity and quota."""
    return min(read_cores().n_default, MAX_THREADS)


def read_threads(value: Any, name: str = "n_threads") -> int:
    """Parse a number of threads: 1..MAX_THREADS, or AUTO for 0, "auto" and None.

    Raises `UsageError`, whose message begins with `name`, for anything else.
    """
    if value is None or (isinstance(value, str) and value.strip().lower() == "auto"):
        return AUTO
    number = _number(value)
    if number is None or not 0 <= number <= MAX_THREADS:
        raise UsageError(f"{name} {value!r}: give a number of threads from 1 to {MAX_THREADS}, or auto.")
    return number


def n_threads(wanted: int) -> int:
    """Return `wanted` threads, or the default number for AUTO."""
    return wanted or default_threads()


def warn_excess(wanted: int, warn: Callable[[str], object] = warnings.warn) -> None:
    """Warn once per process if `wanted` threads exceed the processors that the process may use."""
    text = None if wanted == AUTO or wanted in _warned else excess(wanted, read_cores())
    if text is not None:
        _warned.add(wanted)
        warn(text)


def excess(wanted: int, cores: Cores) -> str | None:
    """Return the warning for `wanted` threads; None if there are enough processors."""
    if cores.quota is not None and wanted > cores.quota:
        limit = f"the control group grants {cores.quota:g} processors"
    elif wanted > cores.n_allowed:
        limit = f"this process may use {cores.n_allowed} of {cores.n_logical} processors"
    else:
        return None
    return f"{wanted} threads are slow here: {limit}. The default is {cores.n_default}."


def _number(value: Any) -> int | None:
    if isinstance(value, str):
        text = value.strip()
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None
    try:
        return None if isinstance(value, (bool, float)) else value.__index__()
    except (AttributeError, TypeError):
        return None
