"""Programs of llama.cpp that our build makes, as processes that end with this one."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
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
        start_new_session=True,  # Ctrl-C comes to us alone: a second one would end it in the middle of its end
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        **pipes,
    )


def stop_program(process: subprocess.Popen[Any]) -> None:
    """End a program: by a signal that it can handle, and after `PATIENCE` by one that it cannot."""
    process.terminate()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _die_with_parent() -> None:
    """Let the kernel end the program when this process is killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
