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
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from llama_eagle import console
from llama_eagle.errors import EagleError
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

    folder: of its socket, with mode 0700. arguments: of `serve`, next to the model. patience: seconds to its end.
    """

    def __init__(
        self, model: Offered, needed: int, folder: Path, arguments: Sequence[str], patience: float = 2 * PATIENCE
    ) -> None:
        self.needed = needed
        self.n_users = 0  # requests that it answers
        self._name, self._patience = model.name, patience
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
        raise not_loaded(self._name, reason)

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def end(self) -> None:
        stop_program(self._process, self._patience)

    def hurry(self) -> None:
        """End a server that still saves prompts."""
        self._process.terminate()

    def _show_log(self) -> None:
        """Show what the server logs, with the name of its model."""
        for line in self._process.stderr or ():
            self._last.append(line.strip().removeprefix("error: "))
            console.log(f"{self._name}: {line.rstrip()}")


def not_loaded(name: str, reason: object) -> Refusal:
    return Refusal(FAILED, f"the model '{name}' cannot be loaded: {reason}")


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
        self._leaving: dict[str, Server] = {}  # these get no more requests
        self._starting: Server | None = None
        self._loading = asyncio.Lock()
        self._freed = asyncio.Event()

    def running(self) -> list[Offered]:
        """Return the models that are loaded, the least recently used first."""
        names = [*self._leaving, *self._running]
        return [model for name in names for model in self.models if model.name == name]

    def named(self, name: str) -> Offered:
        """Return the model of a name; "" means the one that was used last, or the only one. Raises `Refusal`."""
        if not name:
            found = self.running()[-1:] or (self.models if len(self.models) == 1 else [])
        else:
            found = [model for model in self.models if model.answers_to(name)]
        if not found:
            known = ", ".join(model.name for model in self.models)
            if name:
                raise Refusal(404, f"this server has no model '{name}', only {known}", "model_not_found")
            raise Refusal(400, f"no model is loaded. Set 'model' in a request to one of: {known}")
        return found[0]

    @contextlib.asynccontextmanager
    async def use(self, model: Offered) -> AsyncIterator[Child]:
        """Yield the address of a model's server, which is started if it does not run. Raises `Refusal`."""
        while (server := self._alive(model)) is None:
            await self._alone(lambda: self._load_unless_alive(model))
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

    async def unload(self, model: Offered) -> None:
        """End a model's server when it has answered its requests."""

        async def end() -> None:
            if model.name in self._running:
                await self._end(model.name)

        await self._alone(end)

    async def _alone(self, work: Callable[[], Awaitable[None]]) -> None:
        """Load or unload when nothing else does. A client that goes gives up its turn; work that has begun ends."""

        async def locked() -> None:
            try:
                await work()
            finally:
                self._loading.release()

        await self._loading.acquire()
        await asyncio.shield(locked())

    async def _load_unless_alive(self, model: Offered) -> None:
        """Load a model if no other request has done so."""
        if self._alive(model) is None:
            self._running[model.name] = await self._load(model)

    async def _load(self, model: Offered) -> Server:
        try:
            needed = await asyncio.to_thread(self._memory_of, model)
        except EagleError as error:
            raise not_loaded(model.name, error) from None
        if needed > self._max_bytes:
            sizes = f"{needed / GIB:.1f} GiB, and --max-memory allows {self._max_bytes / GIB:.1f}"
            raise not_loaded(model.name, f"it needs {sizes}. Start the server with a smaller -c, or allow more")
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
        """End servers until the memory suffices: idle ones first, of these the least recently used one."""
        while sum(server.needed for server in self._servers()) + needed > self._max_bytes:
            idle = (name for name, server in self._running.items() if not server.n_users)
            await self._end(next(idle, None) or next(iter(self._running)))

    async def _end(self, name: str) -> None:
        """End a server when it has answered its requests. New ones wait, or a busy model would keep its room."""
        server = self._leaving[name] = self._running.pop(name)
        try:
            while server.n_users:
                self._freed.clear()
                await self._freed.wait()
            console.log(f"unloading {name}")
            await asyncio.to_thread(server.end)
        finally:
            del self._leaving[name]

    def _servers(self) -> list[Server]:
        return [*self._running.values(), *self._leaving.values()]

    def close(self) -> None:
        """End all servers at the same time, also one that is starting."""
        servers = [server for server in (self._starting, *self._servers()) if server is not None]
        ending = [threading.Thread(target=server.end) for server in servers]
        for thread in ending:
            thread.start()
        for thread in ending:
            thread.join()

    def hurry(self) -> None:
        """Let servers that end save no more prompts."""
        for server in self._servers():
            server.hurry()
