"""Servers of several models, each started when a request names its model.

Each is `llama-eagle serve` with its own drafter, on a socket that only this user reaches. The least recently used ones
end where another model needs their memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from llama_eagle import console
from llama_eagle.native.programs import PATIENCE, start_program, stop_program
from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.llama_server.child import Child, child_in

GIB = 1 << 30
FAILED = 503  # status of a request whose model cannot be loaded


@dataclass(frozen=True)
class Offered:
    """A model that requests may name. file: the first of its GGUF files. n_bytes: of all its files.

    changed: time of its last change, in seconds since 1970.
    """

    name: str
    file: Path
    n_bytes: int
    changed: int = 0

    def answers_to(self, name: str) -> bool:
        """Return True for its name, also without the type, or with the tag that ollama's clients add."""
        given, own = name.lower().removesuffix(":latest"), self.name.lower()
        return given in (own, own.partition(":")[0])


class Server:
    """The server of a model: `llama-eagle serve` as a process. needed: its memory in bytes.

    folder: of its socket, with mode 0700. arguments: of `serve`, next to the model.
    """

    def __init__(self, model: Offered, needed: int, folder: Path, arguments: Sequence[str]) -> None:
        self.needed = needed
        self.n_users = 0  # requests that it answers
        self._name = model.name
        self._last: deque[str] = deque(maxlen=1)
        place = folder / str(len([*folder.iterdir()]))
        place.mkdir()
        self.child = child_in(place)
        settings = {"model": str(model.file), "model_alias": model.name, "host": self.child.host, "port": 0}
        config = place / "config.json"
        config.write_text(json.dumps(settings), "utf-8")
        self._process: subprocess.Popen[str] = start_program(
            [sys.executable, "-m", "llama_eagle", "serve", "--config", str(config), *arguments],
            {**os.environ, "LLAMA_EAGLE_API_KEY": self.child.key},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        )  # fmt: skip
        self._log = threading.Thread(target=self._show_log, name=model.name, daemon=True)
        self._log.start()

    def listen(self) -> None:
        """Wait until the model is loaded. Raises `Refusal` if it cannot be."""
        assert self._process.stdout is not None
        if address := self._process.stdout.readline():
            self.child.set_address(address.strip())
            return
        self._process.wait()
        self._log.join()
        reason = self._last[0] if self._last else "no reason given"
        raise Refusal(FAILED, f"the model '{self._name}' cannot be loaded: {reason}")

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def end(self) -> None:
        stop_program(self._process, 2 * PATIENCE)  # it ends a program of its own

    def _show_log(self) -> None:
        """Show what the server logs, with the name of its model."""
        for line in self._process.stderr or ():
            self._last.append(line.strip().removeprefix("error: "))
            console.log(f"{self._name}: {line.rstrip()}")


class ModelPool:
    """The running servers. start: starts the server of a model. memory_of: returns what a model needs, in bytes.

    max_bytes: of all running ones.
    """

    def __init__(
        self,
        models: Sequence[Offered],
        start: Callable[[Offered, int], Server],
        memory_of: Callable[[Offered], int],
        max_bytes: int,
    ) -> None:
        self.models = models
        self._start = start
        self._memory_of = memory_of
        self._max_bytes = max_bytes
        self._running: dict[str, Server] = {}  # the least recently used first
        self._starting: Server | None = None
        self._loading = asyncio.Lock()
        self._freed = asyncio.Event()

    def running(self) -> list[Offered]:
        """Return the models that are loaded, the least recently used first."""
        return [model for name in self._running for model in self.models if model.name == name]

    def named(self, name: str) -> Offered:
        """Return the model of a name; "" means the one that was used last, or the only one. Raises `Refusal`."""
        if not name:
            found = self.running()[-1:] or (self.models if len(self.models) == 1 else [])
        else:
            found = [model for model in self.models if model.answers_to(name)]
        if not found:
            known = ", ".join(model.name for model in self.models)
            reason = f"the model '{name}' is none of this server's" if name else "'model' is required"
            raise Refusal(404 if name else 400, f"{reason}: {known}", "model_not_found" if name else None)
        return found[0]

    @contextlib.asynccontextmanager
    async def use(self, model: Offered) -> AsyncIterator[Child]:
        """Yield the address of a model's server, which is started if it does not run. Raises `Refusal`."""
        server = self._alive(model)
        if server is None:
            async with self._loading:
                server = self._alive(model) or await self._load(model)
        self._running.pop(model.name, None)
        self._running[model.name] = server  # the last one used
        server.n_users += 1
        try:
            yield server.child
        finally:
            server.n_users -= 1
            self._freed.set()

    def _alive(self, model: Offered) -> Server | None:
        server = self._running.get(model.name)
        return None if server is None or server.has_ended() else server

    async def _load(self, model: Offered) -> Server:
        needed = await asyncio.to_thread(self._memory_of, model)
        if needed > self._max_bytes:
            sizes = f"{needed / GIB:.1f} GiB, and --max-memory allows {self._max_bytes / GIB:.1f}"
            raise Refusal(FAILED, f"the model '{model.name}' needs {sizes}: use a smaller -c, or allow more")
        self._running.pop(model.name, None)  # one that has ended
        await self._make_room(needed)
        console.log(f"loading {model.name}")
        self._starting = self._start(model, needed)
        try:
            await asyncio.to_thread(self._starting.listen)
            return self._starting
        finally:
            self._starting = None

    async def _make_room(self, needed: int) -> None:
        """End idle servers, the least recently used first, until the memory suffices; wait for those that answer."""
        while sum(server.needed for server in self._running.values()) + needed > self._max_bytes:
            self._freed.clear()
            idle = next((name for name, server in self._running.items() if not server.n_users), None)
            if idle is None:
                await self._freed.wait()
                continue
            console.log(f"unloading {idle}")
            await asyncio.to_thread(self._running.pop(idle).end)

    def close(self) -> None:
        """End all servers, also one that is starting."""
        for server in (self._starting, *self._running.values()):
            if server is not None:
                server.end()
