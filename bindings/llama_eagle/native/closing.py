"""Objects that hold native memory until `close()`, and guards against use by several threads."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T", bound="Closing")


class Closing:
    """Base of context managers that call `close()` at the end."""

    def close(self) -> None:
        """Free native memory. A second call does nothing."""
        raise NotImplementedError

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def free_with(owner: object, handle: ctypes.c_void_p, free: Callable[[ctypes.c_void_p], object]) -> None:
    """Free a native object when `owner` is collected. Its handle is null from then on.

    The `__del__` of other objects may run later, also at exit, and still use `owner`: it has to check the handle.
    """
    weakref.finalize(owner, _free, handle, free).atexit = False


def _free(handle: ctypes.c_void_p, free: Callable[[ctypes.c_void_p], object]) -> None:
    free(handle)
    handle.value = None


class OneThread:
    """A guard that refuses a second thread while one is inside. The same thread may enter again.

    Ctrl-C may arrive at any instruction, also between acquiring a lock and the block that releases it. Here it can
    leave only the owner's name behind, which the next call of that thread clears.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.RLock()
        self._owner: int | None = None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Hold the guard for the block. Raises `RuntimeError` if another thread is inside."""
        me = threading.get_ident()
        if self._owner not in (None, me):
            raise RuntimeError(f"this {self._what} is in use by another thread. Use one instance per thread.")
        nested = self._lock._is_owned()  # type: ignore[attr-defined]
        with self._lock:
            self._owner = me
            try:
                yield
            finally:
                self._owner = me if nested else None
