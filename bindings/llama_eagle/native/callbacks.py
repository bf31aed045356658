"""Python errors inside callbacks of native code, which exceptions must not cross.

They are noted there and raised by `raise_noted()` after the native call: Ctrl-C during loading, and errors of logits
processors.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class _State:
    is_interrupted = False  # Ctrl-C since the start of `held()`


class _Own(threading.local):
    error: BaseException | None = None


_own = _Own()  # native code calls callbacks in the thread of its own call: other threads have errors of their own


def note(error: BaseException) -> None:
    """Record an error inside a callback. The first one is kept."""
    if _own.error is None:
        _own.error = error


def raise_noted() -> None:
    """Raise the error that was recorded in this thread, if there is one."""
    error, _own.error = _own.error, None
    if error is not None:
        raise error


def guarded(function: Callable[..., None]) -> Callable[..., None]:
    """Return `function` for use as a callback: it records errors, and does nothing until a recorded error is raised."""

    def call(*arguments: Any) -> None:
        if _own.error is not None:
            return
        try:
            function(*arguments)
        except BaseException as error:
            note(error)

    return call


@contextmanager
def held() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block, and raise KeyboardInterrupt then: within a callback it would be lost.

    Other threads than the main one, and programs with their own handler of SIGINT, are not affected.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    _State.is_interrupted = False
    signal.signal(signal.SIGINT, _remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        was_interrupted, _State.is_interrupted = _State.is_interrupted, False
        if was_interrupted:
            raise KeyboardInterrupt from None


def is_interrupted() -> bool:
    """Return True after Ctrl-C in the block of `held()`: work that can be stopped should stop."""
    return _State.is_interrupted


def _remember(_number: int, _frame: Any) -> None:
    _State.is_interrupted = True
