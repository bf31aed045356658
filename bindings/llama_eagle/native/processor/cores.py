"""Cores of this machine, and the part that this process may use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cores:
    """Cores of the machine and limits of this process.

    cores: the logical processors of each physical core. fast: logical processors of performance cores; all if the
    system makes no difference. allowed: the affinity mask. quota: number of processors by the time that the control
    group grants, None without a limit.
    """

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
        """Number of logical processors in the affinity mask."""
        return len(self.allowed)

    @property
    def n_default(self) -> int:
        """Default number of threads: one per performance core in the mask, within the quota, at least 1.

        A quota is rounded down: a further thread would consume it while waiting for the others, and stop all of them.
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


def alike(n: int) -> Cores:
    """Return `n` equal cores, all of them allowed."""
    numbers = range(n)
    return Cores(tuple(frozenset({i}) for i in numbers), frozenset(numbers), frozenset(numbers))
