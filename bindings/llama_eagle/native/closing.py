"""Objects that hold native memory until `close()`, and belong to one thread at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T", bound="Closing")


class Closing:
    """A context manager that closes itself."""

    def close(self) -> None:
        """Free what is held. A second call does nothing."""
        raise NotImplementedError

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class OneThread:
    """Refuses a second thread while one is inside; the same thread may enter again.

    Ctrl-C may come at any instruction, also between taking a lock and the block that gives it back. What it can leave
    behind here is the owner's name, which that thread's next call clears.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.RLock()
        self._owner: int | None = None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Raises `RuntimeError` when another thread is inside."""
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
