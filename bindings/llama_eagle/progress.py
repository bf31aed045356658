"""Progress of long jobs on stderr: a bar on a terminal, occasional lines in a file or a pipe."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from llama_eagle import console

FIRST_LINE_S = 5.0  # seconds before the first line in a file
NEXT_LINE_S = 15.0  # seconds between lines
ENOUGH = 0.05  # fraction of the work, before its time is estimated
SLOWER, SLACK_S = 1.5, 2.0  # times the shown remaining time, and seconds, above which an estimate is not shown
ANEW_S = 10.0  # seconds without a shown estimate, before a longer one is shown
HIGHEST = 0.999  # fraction of a job that has not ended


@contextmanager
def progress(label: str, after_s: float = 0.0, done: float = 0.0, then: str = "") -> Iterator[Callable[[float], None]]:
    """Show progress as fractions 0..1. On a terminal the bar appears after `after_s` seconds and disappears at 1.

    done: fraction that an earlier run finished. then: label of the work
    between 1 and the end of the block, which is shown without a fraction.
    """
    bar = Bar(label, done, then)
    bar.start(after_s)
    try:
        yield bar.show
    finally:
        bar.stop()


@contextmanager
def progress_later(label: str, then: str = "") -> Iterator[Callable[[float], None]]:
    """Show progress for work that starts with its first report."""
    bar = Bar(label, then=then)
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


@contextmanager
def conversion(label: str = "converting") -> Iterator[Callable[[int, int, str], None]]:
    """Show progress of a file that is written: bytes written, bytes in all, name of the tensor."""
    with progress(label, then="finishing") as show:
        yield lambda done, total, _name: show(done / max(total, 1))


@contextmanager
def working(label: str, after_s: float = 1.0) -> Iterator[None]:
    """Show on a terminal that work of unknown length goes on, and for how long. A file gets no line."""
    bar = Bar("", then=label)
    if console.on_terminal():
        bar.start(after_s)
        bar.show(1)
    try:
        yield
    finally:
        bar.stop()


def numbered(n_steps: int) -> Callable[[str], None]:
    """Return a function that writes the next of `n_steps` steps to stderr: "[2 of 9] converting"."""
    counter = itertools.count(1)
    return lambda text: console.log(f"[{next(counter)} of {n_steps}] {text}")


class Remaining:
    """Estimate of a job's remaining time that counts down and never rises: a longer one is hidden for a while.

    The speed is that since the first report: what precedes it is preparation, such as imports or a tokenizer.
    """

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None  # fraction and elapsed seconds of the first report
        self._end: float | None = None  # elapsed seconds at which the job ends, by the last report
        self._shown: float | None = None
        self._hidden_at: float | None = None

    def report(self, fraction: float, elapsed_s: float) -> None:
        if self._first is None:
            self._first = fraction, elapsed_s
        done, since_s = fraction - self._first[0], elapsed_s - self._first[1]
        if done >= ENOUGH * (1 - self._first[0]):
            self._end = elapsed_s + since_s * (1 - fraction) / done

    def seconds(self, elapsed_s: float) -> float | None:
        """Return the remaining seconds to show; None before `ENOUGH` of the work, after a slow-down, and if overdue."""
        left = None if self._end is None else self._end - elapsed_s
        if left is None or left <= 0:
            return None
        if self._shown is not None and left > SLOWER * self._shown + SLACK_S:
            self._hidden_at = elapsed_s if self._hidden_at is None else self._hidden_at
            if elapsed_s - self._hidden_at < ANEW_S:
                return None
            self._shown = None
        self._hidden_at = None
        self._shown = left if self._shown is None else min(left, self._shown)
        return self._shown


class Bar:
    """A progress bar that can be started repeatedly. It moves while native code computes.

    Of several that have appeared, the one that was started last is visible. note: text behind the remaining time, for
    the caller to set. then: label of further work after 1.
    """

    _appeared: ClassVar[list[Bar]] = []
    _starts: ClassVar = itertools.count()
    _lock: ClassVar = threading.RLock()  # of all bars, and never taken while rich draws one

    def __init__(self, label: str, done: float = 0.0, then: str = "") -> None:
        self.label, self.done, self.then, self.note = label, done, then, ""
        self.fraction = 0.0
        self._start = 0  # among those of all bars
        self._timer: threading.Timer | None = None
        self._drawn: Any = None
        self._begin = 0.0
        self._remaining = Remaining()

    def start(self, after_s: float = 0.0) -> None:
        """Show the bar after `after_s` seconds, unless stopped before. A file gets lines at longer intervals."""
        self.fraction = self.done
        self._start = next(self._starts)
        self._begin = time.monotonic()
        self._remaining = Remaining()
        if console.on_terminal():
            self._wait(after_s, self._appear)
        else:
            self._wait(FIRST_LINE_S, self._write_line)

    def show(self, fraction: float) -> None:
        """Report the finished fraction. At 1 the bar disappears, or shows that the work `then` goes on."""
        if fraction >= 1 and not self.then:
            self.stop()
        elif fraction >= 1 > self.fraction:
            self.fraction, self._begin = 1.0, time.monotonic()
        elif min(fraction, HIGHEST) > self.fraction:
            self.fraction = min(fraction, HIGHEST)
            self._remaining.report(self.fraction, self._elapsed())

    def stop(self) -> None:
        with self._lock:
            timer, self._timer = self._timer, None
            if self in self._appeared:
                self._hide()
                self._appeared.remove(self)
                if self._appeared:
                    self._appeared[-1]._draw()
        if timer is not None:
            timer.cancel()

    def parts(self) -> list[str]:
        """Return the texts to show now: label, percentage, elapsed time, remaining time, note."""
        elapsed = self._elapsed()
        if self.fraction >= 1:
            return [self.then, "", _minutes(elapsed), "", ""]
        left = self._remaining.seconds(elapsed)
        text = "" if left is None else f"about {_minutes(max(1, round(left)))} left"
        return [self.label, f"{int(100 * self.fraction)}%", _minutes(elapsed), text, self.note]

    def _elapsed(self) -> float:
        return time.monotonic() - self._begin

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        self._timer = threading.Timer(seconds, then)
        self._timer.daemon = True
        self._timer.start()

    def _appear(self) -> None:
        import rich.progress  # noqa: F401  takes a tenth of a second, without the lock

        with self._lock:
            if self._timer is not threading.current_thread():  # stopped meanwhile, or started again
                return
            shown = self._appeared[-1] if self._appeared else None
            self._appeared.append(self)
            self._appeared.sort(key=lambda bar: bar._start)  # one that was started later may appear sooner
            if self._appeared[-1] is not shown:
                if shown is not None:
                    shown._hide()
                self._draw()

    def _draw(self) -> None:
        if self._drawn is None:
            self._drawn = drawing(self)
            self._drawn.start()

    def _hide(self) -> None:
        drawn, self._drawn = self._drawn, None
        if drawn is not None:
            drawn.stop()

    def _write_line(self) -> None:
        with self._lock:
            if self._timer is not threading.current_thread():  # stopped meanwhile, or started again
                return
            label, share, *times = self.parts()
            console.log(", ".join(filter(None, [f"{label}: {share}" if share else label, *times])))
            self._wait(NEXT_LINE_S, self._write_line)


def drawing(bar: Bar) -> Any:
    """Return the line of a bar for a terminal, as rich draws it anew ten times a second from `start()` to `stop()`."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn
    from rich.text import Text

    class Part(ProgressColumn):
        def __init__(self, number: int, width: int = 0) -> None:
            super().__init__()
            self._number, self._width = number, width

        def render(self, task: Any) -> Text:
            return Text(bar.parts()[self._number].rjust(self._width))

    class Fraction(BarColumn):  # it pulses while the fraction is unknown
        def render(self, task: Any) -> Any:
            task.completed, task.total = bar.fraction, None if bar.fraction >= 1 else 1.0
            return super().render(task)

    stderr = Console(stderr=True, no_color=not console.use_color())
    columns = (Part(0), Fraction(), Part(1, len("99%")), Part(2), Part(3), Part(4))
    drawn = Progress(*columns, console=stderr, transient=True, redirect_stdout=sys.stdout.isatty())
    drawn.add_task("")
    return drawn


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
