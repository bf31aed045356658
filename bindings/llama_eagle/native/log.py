"""llama.cpp's log: silent by default. Its last error lines become part of the message of a failed call."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from llama_eagle.native import callbacks

MAX_ERRORS = 8
DEBUG, ERROR, CONTINUE = 1, 4, 5  # ggml_log_level


class _State:
    verbose = False
    level = 0
    listener: Callable[[str], None] | None = None
    callback: Any = None
    errors: ClassVar[list[str]] = []  # the first ones and the newest


def install() -> None:
    """Route llama.cpp's log here. llama-cpp-python installs its own callback on import; this one replaces it."""
    from llama_eagle.native import llama_cpp

    llama_cpp.llama_log_set(callback(), ctypes.c_void_p(0))


def callback() -> Any:
    """Return the C function that receives the log lines of llama.cpp and libmtmd."""
    from llama_eagle.native import llama_cpp

    if _State.callback is None:
        _State.callback = llama_cpp.llama_log_callback(_on_log)
    return _State.callback


def set_verbose(verbose: bool) -> None:
    """Enable or disable llama.cpp's log on stderr."""
    _State.verbose = verbose


def last_error() -> str:
    """Return llama.cpp's newest error line; "" if there was none since `clear()`."""
    return _State.errors[-1] if _State.errors else ""


def first_error() -> str:
    """Return the oldest error line since `clear()`, which is usually the cause of the others."""
    return _State.errors[0] if _State.errors else ""


def error_beginning(text: str) -> str:
    """Return an error line since `clear()` that begins with `text`; "" if there is none."""
    return next((line for line in _State.errors if line.startswith(text)), "")


@contextmanager
def passed_to(listener: Callable[[str], None]) -> Iterator[None]:
    """Pass each piece of llama.cpp's log to `listener` too, on the thread that writes it."""
    _State.listener = listener
    try:
        yield
    finally:
        _State.listener = None


def clear() -> None:
    """Forget earlier errors before a call whose failure should be explained. Also reinstalls the callback."""
    install()
    _State.errors.clear()


def _on_log(level: int, text: bytes, _user_data: Any) -> None:
    try:
        if level != CONTINUE:
            _State.level = level
        line = text.decode("utf-8", "replace")
        if _State.listener is not None:
            _State.listener(line)
        if _State.level == ERROR and line.strip():
            del _State.errors[MAX_ERRORS - 1 :]
            _State.errors.append(line.strip())
        if _State.verbose and _State.level != DEBUG:
            sys.stderr.write(line)
            sys.stderr.flush()
    except KeyboardInterrupt as error:
        callbacks.note(error)
    except (OSError, ValueError):
        pass  # stderr is closed
