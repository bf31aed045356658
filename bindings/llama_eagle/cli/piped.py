"""Text that is piped into a command."""

from __future__ import annotations

import sys
import threading

from llama_eagle import console
from llama_eagle.errors import InputError

PATIENCE_S = 2.0  # before the user is told what is waited for


def read_piped() -> str:
    """Read stdin to its end; "" if it is a terminal, empty or cannot be read.

    Raises `InputError` for text that is not UTF-8.
    """
    if sys.stdin.isatty():
        return ""
    remark = "reading stdin, which belongs to the prompt (</dev/null leaves it out)"
    timer = threading.Timer(PATIENCE_S, console.log, [remark])
    timer.daemon = True
    timer.start()
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except OSError:
        return ""
    except UnicodeDecodeError as error:
        raise InputError(f"stdin: not UTF-8 text (byte {error.start}). Convert it to UTF-8.") from None
    finally:
        timer.cancel()


def with_piped(prompt: str) -> str:
    """Return a prompt with the piped text behind it, as its context."""
    piped = read_piped()
    return f"{prompt}\n\n{piped}" if piped.strip() else prompt
