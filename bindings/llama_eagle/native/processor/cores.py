"""Cores of this machine and the part of them that this process may use."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cores:
    """cores: the logical processors of each physical core. fast: logical processors of performance cores; all of them
    where the system makes no difference. allowed: the affinity mask. quota: processors' worth of time that the control
    group grants, None without a limit."""

    cores: tuple[frozenset[int], ...]
    fast: frozenset[int]
    allowed: frozenset[int]
    quota: float | None = None

    @property
    def n_physical(self) -> int:
        return len(self.cores)

    @property
    def n_logical(self) -> int:
        return len(frozenset().union(*self.cores))

    @property
    def n_allowed(self) -> int:
        """Logical processors in the affinity mask."""
        return len(self.allowed)

    @property
    def n_default(self) -> int:
        """Threads to compute with: one for each performance core in the mask, within the quota, at least 1.

        A quota is rounded down: a thread more would spend it while it waits for the others, and stop all of them.
        """
        usable = self.allowed & self.fast or self.allowed
        n_cores = sum(not core.isdisjoint(usable) for core in self.cores)
        limit = n_cores if self.quota is None else int(self.quota)
        return max(1, min(n_cores, limit))

    def as_dict(self) -> dict[str, Any]:
        return {
            "physical_cores": self.n_physical,
            "logical_cores": self.n_logical,
            "allowed_cores": self.n_allowed,
            "quota": self.quota,
            "default_threads": self.n_default,
        }


def read_cores() -> Cores:
    """The cores of this process, as its system reports them. What cannot be read counts as absent."""
    try:
        found = _of_system()
    except (OSError, ValueError, AttributeError):
        found = None
    return found or alike(os.cpu_count() or 1)


def alike(n: int) -> Cores:
    """`n` cores, all of them allowed."""
    numbers = range(n)
    return Cores(tuple(frozenset({i}) for i in numbers), frozenset(numbers), frozenset(numbers))


def _of_system() -> Cores | None:
    if sys.platform == "win32":
        from llama_eagle.native.processor.windows import read_cores as read
    elif sys.platform == "darwin":
        from llama_eagle.native.processor.macos import read_cores as read
    else:
        from llama_eagle.native.processor.linux import read_cores as read
    return read()
