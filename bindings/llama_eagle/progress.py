"""Progress of long jobs on stderr: a bar on a terminal, occasional lines in a file or a pipe."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llama_eagle import console

FIRST_LINE_S = 5.0  # seconds before the first line in a file
NEXT_LINE_S = 15.0  # seconds between lines
ENOUGH = 0.05  # fraction of the work, before its time is estimated
SLOWER = 1.5  # times the shown remaining time, from which on an estimate is no longer shown


@contextmanager
def progress(label: str, after_s: float = 0.0, done: float = 0.0) -> Iterator[Callable[[float], None]]:
    """Show progress as fractions 0..1. On a terminal the bar appears after `after_s` seconds and disappears at 1.

    done: fraction that an earlier run finished, without influence on the remaining time.
    """
    bar = Bar(label, done)
    bar.start(after_s)
    try:
        yield bar.show
    finally:
        bar.stop()


@contextmanager
def progress_later(label: str) -> Iterator[Callable[[float], None]]:
    """Show progress for work that starts with its first report."""
    bar = Bar(label)
    is_shown = False

    def show(fraction: float) -> None:
        nonlocal is_shown
        if not is_shown:
            bar.start()
        is_shown = True
        bar.show(fraction)

    try:
        yield show
    finally:
        bar.stop()


def numbered(n_steps: int) -> Callable[[str], None]:
    """Return a function that writes the next of `n_steps` steps to stderr: "[2 of 9] converting"."""
    counter = itertools.count(1)
    return lambda text: console.log(f"[{next(counter)} of {n_steps}] {text}")


class Remaining:
    """Estimate of a job's remaining time that never rises: the one shown is kept, or none is shown for a while.

    done: fraction at the start, which took no time of this run.
    """

    def __init__(self, done: float = 0.0) -> None:
        self.done = done
        self._shown: float | None = None

    def seconds(self, fraction: float, elapsed_s: float) -> float | None:
        """Return the remaining seconds to show; None before `ENOUGH` of the work, and after a slow-down."""
        if fraction - self.done < ENOUGH * (1 - self.done):
            return None
        estimate = elapsed_s * (1 - fraction) / (fraction - self.done)
        if self._shown is not None and estimate > SLOWER * self._shown:
            return None
        self._shown = estimate if self._shown is None else min(estimate, self._shown)
        return self._shown


class Bar:
    """A progress bar that can be started repeatedly. It moves while native code computes.

    note: text behind the remaining time, for the caller to set.
    """

    def __init__(self, label: str, done: float = 0.0) -> None:
        self.label, self.done, self.note = label, done, ""
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._shown: Any = None
        self._fraction = 0.0
        self._begin = 0.0
        self._remaining = Remaining(done)

    def start(self, after_s: float = 0.0) -> None:
        """Show the bar after `after_s` seconds, unless stopped before. A file gets lines at longer intervals."""
        self._fraction = self.done
        self._begin = time.monotonic()
        self._remaining = Remaining(self.done)
        if console.on_terminal():
            self._wait(after_s, self._appear)
        else:
            self._wait(FIRST_LINE_S, self._write_line)

    def show(self, fraction: float) -> None:
        """Report the finished fraction. At 1 the bar disappears."""
        self._fraction = fraction
        if fraction >= 1:
            self.stop()
        with self._lock:
            if self._shown is not None:
                self._shown.update(self._shown.task_ids[0], completed=fraction, left=self._left(), note=self.note)

    def stop(self) -> None:
        with self._lock:
            timer, self._timer = self._timer, None
            shown, self._shown = self._shown, None
        if timer is not None:
            timer.cancel()
        if shown is not None:
            shown.stop()

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        self._timer = threading.Timer(seconds, then)
        self._timer.daemon = True
        self._timer.start()

    def _appear(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn(self.label, markup=False), BarColumn(), TextColumn("{task.percentage:3.0f}%"))
        stderr = Console(stderr=True, no_color=not console.use_color())
        texts = (TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in ("left", "note"))
        bar = Progress(*columns, TimeElapsedColumn(), *texts, console=stderr, transient=True)
        fields: dict[str, Any] = {"left": self._left(), "note": self.note}
        bar.add_task(self.label, total=1.0, completed=self._fraction, **fields)  # type: ignore[arg-type]
        with self._lock:
            if self._timer is not None:  # not stopped meanwhile
                self._shown = bar
                bar.start()

    def _write_line(self) -> None:
        with self._lock:
            if self._timer is None:  # stopped meanwhile
                return
            text = f"{self.label}: {self._fraction:.0%}, {_minutes(time.monotonic() - self._begin)}"
            console.log(", ".join(part for part in (text, self._left(), self.note) if part))
            self._wait(NEXT_LINE_S, self._write_line)

    def _left(self) -> str:
        seconds = self._remaining.seconds(self._fraction, time.monotonic() - self._begin)
        return "" if seconds is None else f"about {_minutes(seconds)} left"


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
