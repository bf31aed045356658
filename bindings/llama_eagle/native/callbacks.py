"""Python errors inside callbacks of native code, where no exception can travel.

They are noted there, and raised by `raise_noted()` once the native call has returned: Ctrl-C while a model is loaded,
what a logits processor raises.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class _State:
    error: BaseException | None = None
    is_interrupted = False  # Ctrl-C has come since `held()` began


def note(error: BaseException) -> None:
    """Remember what went wrong inside a callback; the first error counts."""
    if _State.error is None:
        _State.error = error


def raise_noted() -> None:
    """Raise what was noted, if anything was."""
    error, _State.error = _State.error, None
    if error is not None:
        raise error


def guarded(function: Callable[..., None]) -> Callable[..., None]:
    """`function` for a callback: what it raises is noted, and after that it is called no more until that is raised."""

    def call(*arguments: Any) -> None:
        if _State.error is not None:
            return
        try:
            function(*arguments)
        except BaseException as error:
            note(error)

    return call


@contextmanager
def held() -> Iterator[None]:
    """Ctrl-C waits until the block is done, and is a KeyboardInterrupt then: within a callback, it would be lost.

    In other threads than the main one, and where a program has its own handler of SIGINT, nothing changes.
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
        came, _State.is_interrupted = _State.is_interrupted, False
        if came:
            raise KeyboardInterrupt from None


def is_interrupted() -> bool:
    """Whether Ctrl-C has come in the block of `held()`: what can be stopped should stop."""
    return _State.is_interrupted


def _remember(_number: int, _frame: Any) -> None:
    _State.is_interrupted = True
