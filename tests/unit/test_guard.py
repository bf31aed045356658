"""One thread at a time, whatever instruction Ctrl-C comes at; errors of callbacks stay in their thread."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

import pytest
from llama_eagle.native import callbacks
from llama_eagle.native.closing import OneThread

pytestmark = pytest.mark.skipif("sys.platform == 'win32'", reason="there is no timer of signals")


@pytest.fixture
def alarm() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGALRM, before)


def is_free(one: OneThread) -> bool:
    """For another thread."""
    entered: list[bool] = []

    def enter() -> None:
        with contextlib.suppress(RuntimeError), one.entered():
            entered.append(True)

    thread = threading.Thread(target=enter, daemon=True)
    thread.start()
    thread.join(10)
    return bool(entered)


def test_ctrl_c_leaves_nothing_held(alarm: None) -> None:
    """Between taking the lock and the block that gives it back, too: hundreds of signals find every place."""
    for n in range(400):
        one = OneThread("thing")
        with contextlib.suppress(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.0002 + 0.00003 * (n % 9))
            while True:
                with one.entered(), one.entered():
                    pass
        with one.entered():  # clears what this thread has left
            assert not is_free(one)
        assert is_free(one)


def test_another_thread_does_not_raise_the_error_of_a_callback() -> None:
    """Loading that its `on_progress` cancels does not end the generation of another instance."""
    callbacks.note(LookupError("cancelled"))
    other = threading.Thread(target=lambda: raised.append(_raises()))
    raised: list[bool] = []
    other.start()
    other.join()
    assert (raised, _raises(), _raises()) == ([False], True, False)


def _raises() -> bool:
    try:
        callbacks.raise_noted()
    except LookupError:
        return True
    return False
