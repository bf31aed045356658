"""Chat templates are programs that come with a model, from strangers: each is rendered in a process of its own, which
has so much time and memory and no more. It is started with the first chat and lives as long as we do.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from llama_eagle.errors import InputError, UsageError

MAX_SECONDS = 10.0
MAX_CHARACTERS = 1 << 24  # of a prompt
MAX_MIB = 1024  # of the process

WORKER = Path(__file__).with_name("template_worker.py")


def render(template: str, variables: Mapping[str, Any], where: object) -> str:
    """The text of a chat. `where`: whose template it is, for messages.

    Raises `InputError` for a template that is none, that refuses these messages or goes beyond the limits, and
    `UsageError` for variables that no JSON can hold.
    """
    try:
        request = json.dumps({"template": template, "variables": dict(variables)}, default=_plain).encode()
    except (TypeError, ValueError) as error:
        raise UsageError(f"a chat template takes what JSON can hold: {error}. Correct the messages.") from None
    told = _worker.ask(request)
    if "error" in told:
        raise InputError(f"the chat template of {where} gives no prompt: {told['error']}. Correct the messages or it.")
    return str(told["prompt"])


def start_worker() -> None:
    """Start the process ahead of the first chat, so that it is ready when a model is loaded."""
    _worker.start()


def end_worker() -> None:
    """End the process; the next chat would start it again."""
    _worker.end()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable):
        return list(value)
    raise TypeError(f"a {type(value).__name__} is none of that")


def _has_python() -> bool:
    """False in a frozen program."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


class _Worker:
    """The process, shared by all threads of ours. In a frozen program, which has no Python to start, we render."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def start(self) -> None:
        if _has_python():
            with self._lock, contextlib.suppress(OSError):  # the first chat tries again and reports it
                self._started()

    def ask(self, request: bytes) -> dict[str, Any]:
        if not _has_python():
            from llama_eagle.sessions import template_worker

            return template_worker.answer(json.loads(request), MAX_CHARACTERS)
        with self._lock:
            try:
                line = self._exchange(request)
            except BaseException:  # Ctrl-C: the answer to come would be taken for the next one's
                self.end()
                raise
            if not line.endswith(b"\n"):
                self.end()
                return {"error": f"it takes more than {MAX_SECONDS:.0f} s, or {MAX_MIB} MiB"}
            return dict(json.loads(line))

    def _exchange(self, request: bytes) -> bytes:
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        timer = threading.Timer(MAX_SECONDS, process.kill)
        timer.daemon = True
        timer.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(request + b"\n")
                process.stdin.flush()
            return process.stdout.readline()
        finally:
            timer.cancel()

    def _started(self) -> subprocess.Popen[bytes]:
        """What a fork of ours would share with us is started anew."""
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            words = [sys.executable, str(WORKER), str(MAX_CHARACTERS), str(MAX_MIB), str(MAX_SECONDS)]
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"},
                start_new_session=True,  # Ctrl-C is ours
            )
            self._owner = os.getpid()
        return self._process

    def end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


_worker = _Worker()
