"""Python errors inside callbacks of native code, where no exception can travel.

They are noted there, and raised by `raise_noted()` once the native call has returned: Ctrl-C while a model is loaded,
what a logits processor raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class _State:
    error: BaseException | None = None


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
