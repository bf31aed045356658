"""Rendering of chat templates in a separate process with limits on time and memory.

Chat templates are programs that come with models from untrusted sources. The process is started with the first chat and
lives as long as this one.
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
from llama_eagle.native.trials.child import environment

MAX_SECONDS = 10.0  # of processor time
# The longest wait. Next to other programs a template gets a part of a core; Windows does not limit processor time.
MAX_WAIT = 6 if os.name == "posix" else 1  # times MAX_SECONDS
MAX_CHARACTERS = 1 << 24  # in a prompt
MAX_MIB = 1024  # memory of the process
READS_FUNCTIONS = "functools["  # in templates of Firefunction, which read tools as a text `functions`

WORKER = Path(__file__).with_name("template_worker.py")


def render(template: str, variables: Mapping[str, Any], where: object) -> str:
    """Return the text of a chat. `where`: the owner of the template, for messages.

    Raises `InputError` for an invalid template, or one that refuses these messages or exceeds the limits. Raises
    `UsageError` for variables that JSON cannot represent.
    """
    if READS_FUNCTIONS in template:
        functions = [tool["function"] for tool in variables.get("tools") or ()]
        variables = {"functions": json.dumps(functions, indent=4) if functions else "", **variables}
    try:
        request = json.dumps({"template": template, "variables": dict(variables)}, default=_plain).encode()
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"JSON cannot represent these messages ({error}). Send texts, numbers, lists and dicts."
        ) from None
    response = _workers.request(request)
    if "error" in response:
        raise InputError(
            f"the chat template of {where} failed: {response['error']}. Correct the messages or the template."
        )
    return str(response["prompt"])


def start_worker() -> None:
    """Start the process before the first chat, so that it is ready when a model is loaded."""
    _workers.start()


def end_worker() -> None:
    """End the process. The next chat starts it again."""
    _workers.end()


def close_worker() -> None:
    """End the process for good, within a request, too: that one and those that wait for it fail."""
    _workers.close()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not supported")


def _has_python() -> bool:
    """Return False in a frozen program."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


class _Worker:
    """A process that renders one template at a time. A frozen program has no Python to start, and renders by itself."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._is_closed = False

    def start(self) -> None:
        if _has_python():
            with self.lock, contextlib.suppress(OSError):  # the first chat tries again and reports it
                self._started()

    def request(self, request: bytes) -> dict[str, Any]:
        """Return the response. The caller holds the lock."""
        if not _has_python():
            from llama_eagle.sessions.chats import template_worker

            return template_worker.answer(json.loads(request), MAX_CHARACTERS)
        if self._is_closed:
            return {"error": "this program ends"}
        try:
            line = self._exchange(request)
        except BaseException:  # Ctrl-C: the pending response would be read as that of the next request
            self.end()
            raise
        if not line.endswith(b"\n"):
            self.end()
            return {"error": f"it takes more than {MAX_SECONDS:.0f} s or {MAX_MIB} MiB"}
        return dict(json.loads(line))

    def _exchange(self, request: bytes) -> bytes:
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        timer = threading.Timer(MAX_WAIT * MAX_SECONDS, process.kill)
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
        """Return the running process. After a fork, start a new one instead of sharing it with the parent."""
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            arguments = [sys.executable, str(WORKER), str(MAX_CHARACTERS), str(MAX_MIB), str(MAX_SECONDS)]
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment(),
                start_new_session=True,  # only this process handles Ctrl-C
            )
            self._owner = os.getpid()
        return self._process

    def close(self) -> None:
        self._is_closed = True
        if (process := self._process) is not None:
            process.kill()

    def end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


class _Workers:
    """Processes shared by all threads. The second one is started when the first is busy with a slow template."""

    def __init__(self) -> None:
        self._all = (_Worker(), _Worker())

    def start(self) -> None:
        self._all[0].start()

    def request(self, request: bytes) -> dict[str, Any]:
        for worker in self._all:
            if worker.lock.acquire(blocking=worker is self._all[-1]):
                try:
                    return worker.request(request)
                finally:
                    worker.lock.release()
        raise AssertionError("no worker")

    def end(self) -> None:
        for worker in self._all:
            worker.end()

    def close(self) -> None:
        for worker in self._all:
            worker.close()


_workers = _Workers()
