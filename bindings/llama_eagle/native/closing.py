"""Objects that hold native memory until `close()`."""

from __future__ import annotations

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
