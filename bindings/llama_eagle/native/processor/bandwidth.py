"""Memory bandwidth: bytes per second that threads read from an array larger than every cache."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

ARRAY_BYTES = 1 << 29
N_PASSES = 6


def read_rates(numbers_of_threads: Iterable[int], n_bytes: int = ARRAY_BYTES) -> list[float]:
    """Return the bytes/s that each number of threads reads together (best of N_PASSES).

    Takes about two seconds for one and all threads.
    """
    array = np.ones(n_bytes // 4, np.int32)
    return [_best(np.array_split(array, n)) for n in numbers_of_threads]


def _best(parts: Sequence[np.ndarray]) -> float:
    with ThreadPoolExecutor(len(parts)) as pool:
        return sum(part.nbytes for part in parts) / min(_seconds(pool, parts) for _ in range(N_PASSES))


def _seconds(pool: ThreadPoolExecutor, parts: Sequence[np.ndarray]) -> float:
    start = time.perf_counter()
    list(pool.map(np.max, parts))
    return time.perf_counter() - start
