"""The child process of llama.cpp's converter, from the parent's side."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from llama_eagle.convert.upstream.converter import converter_folders
from llama_eagle.errors import ConversionError, EnvironmentFailure
from llama_eagle.native.trials.child import environment

POLL_S = 0.2
REMEDY = "LLAMA_EAGLE_DEBUG=1 shows its log"


def run_child(
    module: str, request: dict[str, Any], where: str, poll: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Run a module of ours next to llama.cpp's converter; return its answer.

    where: subject of errors. poll: called several times a second. Raises `ConversionError` for a checkpoint that
    cannot be converted, `EnvironmentFailure` for a missing package, or if the child is ended. It never outlives this
    process, and Ctrl-C ends it.
    """
    request = {**request, "path": [str(folder) for folder in converter_folders()]}
    with tempfile.TemporaryFile() as answers, tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module],
            env=environment(TOKENIZERS_PARALLELISM="false"),
            stdin=subprocess.PIPE,
            stdout=answers,
            stderr=log,
            start_new_session=True,  # only this process gets Ctrl-C
        )
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            _wait(process, poll)
        except BrokenPipeError:
            process.wait()
        finally:
            _end(process)
        return _answer(process.returncode, _text(answers), _text(log), where)


def _wait(process: subprocess.Popen[bytes], poll: Callable[[], None]) -> None:
    while True:
        try:
            process.wait(POLL_S)
        except subprocess.TimeoutExpired:
            poll()
        else:
            return


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the child and its children."""
    if process.poll() is None:
        kill = getattr(os, "killpg", None)
        if kill is None:
            process.kill()
        else:
            kill(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def _text(file: Any) -> str:
    file.seek(0)
    return bytes(file.read()).decode("utf-8", "replace")


def _answer(status: int, text: str, log: str, where: str) -> dict[str, Any]:
    if os.environ.get("LLAMA_EAGLE_DEBUG") == "1":
        sys.stderr.write(log)
    lines = text.splitlines()
    if status == -signal.SIGKILL:
        raise EnvironmentFailure(f"{where}: llama.cpp's converter was killed, presumably for lack of memory. Free some")
    if not lines:
        said = log.strip().splitlines() or [f"exit status {status}"]
        raise ConversionError(f"{where}: llama.cpp's converter ended without a result ({said[-1][:300]}); {REMEDY}")
    found = dict(json.loads(lines[-1]))
    if error := found.get("error"):
        kind = EnvironmentFailure if error["kind"] == "environment" else ConversionError
        raise kind(f"{where}: {error['message']}")
    return found
