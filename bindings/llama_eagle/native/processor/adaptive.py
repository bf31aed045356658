"""Number of threads of a program that divides its work evenly, adapted to what other programs leave of the processor.

torch divides each operation evenly, so one thread that shares its core delays all. With one thread per free core none
of them waits. Our own kernels need no such adaptation: their threads take the next piece of work when they are free.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from llama_eagle.native.processor.competition import Usage, read_usage

WINDOW = 5.0  # seconds between two readings of the accounting
DELAYED = 0.3  # share of a window that threads must have waited for a core in order to use one thread less
RETRY, LONGEST_RETRY = 60.0, 960.0  # seconds until one thread more is tried again; doubled each time it is too many


class AdaptiveThreads:
    """Sets the number of threads, from 1 to `n`, with `set_threads`. Does nothing where delays are not counted."""

    def __init__(
        self,
        n: int,
        set_threads: Callable[[int], object],
        usage: Callable[[], Usage | None] = read_usage,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._read, self._clock = usage, clock
        self._most = self.n = n
        self._set_threads = set_threads
        self._retry, self._since = RETRY, clock()
        self._begin()

    def after_step(self) -> None:
        """Adapt the number if a window has ended."""
        wall = self._clock() - self._start
        if wall < WINDOW:
            return
        now, before = self._read(), self._usage
        if now is not None and before is not None:
            self._adapt((now.delay - before.delay) / wall)
        self._begin()

    def _adapt(self, delayed: float) -> None:
        is_retry = self.n < self._most and self._clock() - self._since >= self._retry
        if delayed >= DELAYED and self.n > 1:
            self._set(self.n - 1)
        elif delayed < DELAYED and is_retry:
            self._retry = min(2 * self._retry, LONGEST_RETRY)
            self._set(self.n + 1)
        elif delayed < DELAYED and self.n == self._most:
            self._retry = RETRY

    def _set(self, n: int) -> None:
        self.n, self._since = n, self._clock()
        self._set_threads(n)

    def _begin(self) -> None:
        self._start, self._usage = self._clock(), self._read()
