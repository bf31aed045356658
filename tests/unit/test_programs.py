"""Programs that we start end with us, also on systems where the kernel does not see to it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif("sys.platform == 'win32'", reason="these signals are POSIX's")

# The program inherits stdout, so that its end is the end of that pipe.
HOLDER = """
import sys
from llama_eagle.native import programs
from llama_eagle.serving.llama_server import process as serving
programs._die_with_parent = lambda: None
process = programs.start_program([sys.executable, "-c", "import time; time.sleep(100)"], {})
def ready(): print("ready", flush=True)
"""
ENDINGS = {
    "background": "with programs.ended_with_us(process): ready(); process.wait()",
    "serve": "sys.exit(serving.until_end(process, lambda _: ready() or '', ''))",
    "failure": "serving.until_end(process, lambda _: ready() or 1 / 0, '')",
}


def restore_signals() -> None:
    """Under nohup, or in a shell's background, the process would ignore them."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


def ignore_hangup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def ended(how: str, *numbers: signal.Signals, prepare: object = restore_signals) -> int:
    """Return the exit code after the signals; fail if the program still runs."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER + ENDINGS[how]],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=prepare,  # type: ignore[arg-type]
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    for number in numbers:
        holder.send_signal(number)
    holder.communicate(timeout=20)
    return holder.returncode


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals(number: signal.Signals) -> None:
    assert ended("background", number) == -number
    assert ended("serve", number) == 0


def test_failures() -> None:
    assert ended("failure") == 1


def test_under_nohup() -> None:
    """The ignored signal neither ends us nor the program."""
    assert ended("serve", signal.SIGHUP, signal.SIGINT, prepare=ignore_hangup) == 130
