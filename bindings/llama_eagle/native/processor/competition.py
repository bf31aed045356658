"""Notices other programs that hold the cores: rounds take several times what they should for seconds on end.

Slow rounds alone prove nothing: a long context, a page that is read from disk and a saving disk look the same. The
system's accounting decides: how long threads of this process were ready to run and had no core (Linux: run delay in
/proc/self/task/*/schedstat; elsewhere nothing is reported).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llama_eagle.native.processor.detect import read_cores

FACTOR = 3.0  # of a round's time, from which a window counts as slow
SECONDS = 3.0  # of slow windows in a row, until it is reported
WINDOW = 1.0  # seconds between two readings of the system's accounting
IDLE = 2.0  # a window of more than this times its rounds' time holds pauses and is dropped
GROWTH = 1.01  # what a round's best time may grow by from one round to the next, as its context does
DELAYED = 0.3  # share of a window that threads must have waited for a core before rounds' times count
OWN = 0.85  # share of the process's cores from which its own threads fill them
LARGEST_SHARE = 0.95  # of a window that is taken for waiting

TASKS = Path("/proc/self/task")


@dataclass(frozen=True)
class Usage:
    """What the system counts, in seconds: time of this process's threads without a core, and on one."""

    delay: float
    cpu: float


def read_usage(tasks: Path = TASKS) -> Usage | None:
    """The threads below `tasks` together; None where the system does not count delays."""
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
    """Nanoseconds on a core and without one; None for a thread that has ended meanwhile."""
    try:
        words = path.read_text().split()
        return int(words[0]), int(words[1])
    except (OSError, ValueError, IndexError):
        return None


class Competition:
    """Collects rounds. `report` gets one line, once; nothing is read without it. n_cores: that the process may use."""

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
        """A round of `n_rows` rows took `seconds` to verify, up to now."""
        if self._report is None:
            return
        if self._usage is None:
            self._begin()
            return
        self._best[n_rows] = min(seconds, self._best.get(n_rows, seconds) * GROWTH)
        self._busy += seconds
        self._expected += self._best[n_rows]
        wall = self._clock() - self._start
        if wall >= WINDOW:
            self._end_window(wall)
            self._begin()

    def _begin(self) -> None:
        self._start, self._usage = self._clock(), self._read()
        self._busy = self._expected = 0.0

    def _end_window(self, wall: float) -> None:
        factor = self._factor(wall)
        self._slow = self._slow + wall if factor >= FACTOR else 0.0
        if self._slow >= SECONDS and self._report is not None:
            self._report(
                f"other programs hold the processor: rounds take about {factor:.0f} times as long. "
                "-t 1 may be faster until they end."
            )
            self._report = None

    def _factor(self, wall: float) -> float:
        """How many times as long rounds take because threads wait for a core; 1 where that is not known."""
        now, before = self._read(), self._usage
        if now is None or before is None or wall > IDLE * self._busy:
            return 1.0
        if now.cpu - before.cpu >= OWN * self._n_cores * wall:
            return 1.0  # its own threads are more than the cores
        share = min((now.delay - before.delay) / wall, LARGEST_SHARE)
        measured = self._busy / self._expected if share >= DELAYED else 1.0
        return max(measured, 1 / (1 - max(share, 0.0)))


def watch_process(pid: int, report: Callable[[str], object]) -> None:
    """Report competition with another process, from a thread of its own. Its rounds are unknown: its delays decide."""
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
    """As `Competition.note`, where a front end reports it."""
    if _current is not None:
        _current.note(n_rows, seconds)
