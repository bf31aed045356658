"""Detection of other programs that occupy the cores: rounds take several times their usual time for seconds.

Slow rounds alone prove nothing: a long context or a page read from disk looks the same. The accounting of the operating
system decides: the time that threads of this process were runnable without a core (Linux: run delay in
/proc/self/task/*/schedstat; other systems report nothing).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llama_eagle.native.processor.detect import read_cores

FACTOR = 3.0  # a window is slow if its rounds take at least this many times their best time
SECONDS = 3.0  # consecutive slow windows, before a report
WINDOW = 1.0  # seconds between two readings of the accounting
IDLE = 2.0  # a window longer than this many times its rounds contains pauses and is dropped
GROWTH = 1.01  # growth of a round's best time per round, because the context grows
DELAYED = 0.3  # share of a window that threads must have waited for a core before round times are used
WAITING = 0.5  # share of the time of runnable threads, if no quick round is known
OWN = 0.85  # share of the cores at which the process's own threads occupy them

TASKS = Path("/proc/self/task")


@dataclass(frozen=True)
class Usage:
    """Accounting of this process's threads, in seconds: time without a core, and time on one."""

    delay: float
    cpu: float


def read_usage(tasks: Path = TASKS) -> Usage | None:
    """Return the sum over the threads below `tasks`; None if the system does not count delays."""
    times = [found for task in _listed(tasks) if (found := _times(task / "schedstat"))]
    if not times:
        return None
    return Usage(sum(delay for _, delay in times) / 1e9, sum(cpu for cpu, _ in times) / 1e9)


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _times(path: Path) -> tuple[int, int] | None:
    """Return nanoseconds on a core and without one; None for a thread that has ended."""
    try:
        fields = path.read_text().split()
        return int(fields[0]), int(fields[1])
    except (OSError, ValueError, IndexError):
        return None


class Competition:
    """Collector of rounds. `report` receives one line, once. n_cores: number of cores that the process may use."""

    def __init__(
        self,
        report: Callable[[str], object],
        n_cores: float,
        usage: Callable[[], Usage | None] = read_usage,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._report: Callable[[str], object] | None = report
        self._n_cores = n_cores
        self._read = usage
        self._clock = clock
        self._best: dict[int, float] = {}
        self._begin()
        self._slow = 0.0

    @property
    def is_reported(self) -> bool:
        return self._report is None

    def note(self, n_rows: int, seconds: float) -> None:
        """Record that the verification of `n_rows` rows took `seconds`, until now."""
        if self._report is None:
            return
        if self._usage is None:
            self._begin()
            return
        self._best[n_rows] = min(seconds, self._best.get(n_rows, seconds) * GROWTH)
        self._busy += seconds
        self._expected += min(seconds, self._best_before.get(n_rows, seconds))
        wall = self._clock() - self._start
        if wall >= WINDOW:
            self._end_window(wall)
            self._begin()

    def _begin(self) -> None:
        self._start, self._usage = self._clock(), self._read()
        self._busy = self._expected = 0.0
        self._best_before = {**self._best}

    def _end_window(self, wall: float) -> None:
        measured = self._measure(wall)
        if measured:  # the context's growth is not told from the delays, and would hide them
            self._best = {n_rows: min(self._best_before.get(n_rows, best), best) for n_rows, best in self._best.items()}
        self._slow = self._slow + wall if measured else 0.0
        if measured and self._slow >= SECONDS and self._report is not None:
            self._report(f"other programs occupy the processor: {measured}")
            self._report = None

    def _measure(self, wall: float) -> str:
        """Describe how waiting for cores slows rounds down; "" if it hardly does, or if it is unknown."""
        now, before = self._read(), self._usage
        if now is None or before is None or wall > IDLE * self._busy:
            return ""
        delay, cpu = now.delay - before.delay, now.cpu - before.cpu
        if delay < DELAYED * wall or cpu >= OWN * self._n_cores * wall:  # the second: its own threads occupy the cores
            return ""
        factor, waiting = self._busy / self._expected, delay / (delay + cpu)
        if factor >= FACTOR:
            return f"rounds take about {factor:.1f} times as long"
        return f"threads wait for a core {waiting:.0%} of the time" if waiting >= WAITING else ""


def watch_process(pid: int, report: Callable[[str], object]) -> None:
    """Report competition with another process, from a separate thread. Only its delays are known, not its rounds."""
    tasks = Path(f"/proc/{pid}/task")
    competition = Competition(report, _n_cores(), lambda: read_usage(tasks))

    def watch() -> None:
        while read_usage(tasks) is not None and not competition.is_reported:
            time.sleep(WINDOW)
            competition.note(1, WINDOW)

    threading.Thread(target=watch, name="competition", daemon=True).start()


def _n_cores() -> float:
    cores = read_cores()
    return min(cores.n_allowed, cores.quota or cores.n_allowed)


_current: Competition | None = None


def report_to(report: Callable[[str], object]) -> None:
    """Report competition to `report` from now on, once in this process."""
    global _current
    if _current is None:
        _current = Competition(report, _n_cores())


def note_round(n_rows: int, seconds: float) -> None:
    """Record a round, as `Competition.note`, if a front end has requested reports."""
    if _current is not None:
        _current.note(n_rows, seconds)
