"""Text that is piped into a command."""

from __future__ import annotations

import sys
import threading

from llama_eagle import console
from llama_eagle.files import decoded

REMARK_AFTER_S = 2.0


def read_piped() -> str:
    """Read stdin to its end; "" if it is a terminal, empty or cannot be read.

    Raises `InputError` for text that is not UTF-8.
    """
    if sys.stdin.isatty():
        return ""
    remark = "waiting for stdin, which is part of the prompt (use </dev/null for none)"
    timer = threading.Timer(REMARK_AFTER_S, console.log, [remark])
    timer.daemon = True
    timer.start()
    try:
        return decoded(sys.stdin.buffer.read(), "stdin")
    except OSError:
        return ""
    finally:
        timer.cancel()


def with_piped(prompt: str) -> str:
    """Return a prompt followed by the text piped into stdin, if there is any."""
    piped = read_piped()
    return f"{prompt}\n\n{piped}" if piped.strip() else prompt
