"""Programs of llama.cpp that our build makes, as processes that end with this one."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from llama_eagle.errors import EnvironmentFailure
from llama_eagle.native.build import library_folder

PATIENCE = 1.5  # seconds that a program has to end by itself
PR_SET_PDEATHSIG = 1


def find_program(program: str, remedy: str) -> Path:
    """Return the path of a program of our build. Raises `EnvironmentFailure` when it was left out."""
    for name in (program, f"{program}.exe"):
        if (path := library_folder() / name).exists():
            return path
    raise EnvironmentFailure(f"{library_folder()} has no {program}: {remedy}.")


def start_program(command: Sequence[str], variables: Mapping[str, str], **pipes: Any) -> subprocess.Popen[Any]:
    """Start a program with this environment. `pipes`: further arguments of `Popen`."""
    return subprocess.Popen(
        command,
        env=variables,
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # only this process gets Ctrl-C: a second one would interrupt the child's shutdown
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        **pipes,
    )


def stop_program(process: subprocess.Popen[Any], patience: float = PATIENCE) -> None:
    """End a program: by a signal that it can handle, and after `patience` seconds by one that it cannot."""
    process.terminate()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def ending_signals() -> list[int]:
    """Return the signals that end this process and that it does not ignore, as it does under nohup."""
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


@contextlib.contextmanager
def ended_with_us(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Stop the program at the end of the block, and before a signal ends this process.

    Only Linux ends it by itself. Handlers installed before are called after that.
    """
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in (ending_signals() if is_main else ())}

    def end(number: int, _frame: FrameType | None) -> None:
        process.terminate()
        signal.signal(number, before[number])
        os.kill(os.getpid(), number)

    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        stop_program(process)
        for number, handler in before.items():
            signal.signal(number, handler)


def _die_with_parent() -> None:
    """Let the kernel end the program when this process is killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
