"""The server's front: it owns the address, and its child computes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from llama_eagle import console
from llama_eagle.errors import EnvironmentFailure
from llama_eagle.native.processor.competition import watch_process
from llama_eagle.progress import working
from llama_eagle.serving import resume
from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.apis import (
    adapters,
    chat,
    completions,
    health,
    messages,
    models,
    responses,
    slot_actions,
    tokens,
    vectors,
)
from llama_eagle.serving.apis.completions import infill
from llama_eagle.serving.http import IDLE_S, Front
from llama_eagle.serving.llama_server.child import Child
from llama_eagle.serving.llama_server.options import Checked
from llama_eagle.serving.llama_server.process import PromptLines, follow_log
from llama_eagle.serving.model_files import model_files
from llama_eagle.serving.ollama import ROUTES
from llama_eagle.serving.saved import saved_prompts
from llama_eagle.serving.settings import FrontSettings
from llama_eagle.sessions.chats.template import close_worker

FIRST_S = 5  # seconds that a client has for its first request
HEAD_S = 60  # seconds that a client has for the head of a request once it has begun
BACKLOG = 1024
END_S = 1  # seconds that answers have to end behind the child's end
TLS_HANDSHAKE = 22  # first byte of a client that speaks TLS
NO_TLS = "this server speaks no TLS: use http://"


def run(
    served: Checked,
    settings: FrontSettings,
    child: Child,
    process: subprocess.Popen[str],
    about: str,
    before_end: Callable[[Callable[[], object]], object],
    is_ending: Callable[[], bool],
) -> str:
    """Serve until the child's end; return the reason in its log.

    When the model is loaded, print "listening on URL" to stdout and `about` to stderr, unless `is_ending`. before_end:
    receives a function to call before a signal ends the child. Raises `EnvironmentFailure` if the address is occupied.
    """
    with listener_on(settings.host, settings.port) as listener, ExitStack() as loading:
        loading.enter_context(working("loading the model"))
        watch_process(process.pid, console.warn)

        def announce(text: str) -> None:
            child.set_address(text)
            loading.close()
            if is_ending():
                return
            console.log(about)
            console.data(f"listening on {url_of(settings.host, listener)}")
            sys.stdout.flush()

        def read_log() -> str:
            return follow_log(process, served.options.verbose, announce, PromptLines(), served.learn)

        apis = (
            adapters, chat, completions, health, infill, messages, models, responses, resume, slot_actions, tokens,
            vectors,
        )  # fmt: skip
        routes = [each for api in apis for each in api.routes(settings.prefix)]
        front = Front(child, settings, [*routes, *ROUTES], model_files(served))
        front.saved = saved = saved_prompts.saved_prompts(served)
        if saved is not None:
            before_end(lambda: saved.save_at_end(front))
        return asyncio.run(serve_until(front, listener, read_log))


async def serve_until(front: Front, listener: socket.socket, read_log: Callable[[], str]) -> str:
    """Serve until `read_log`, which runs in a thread, returns the reason of the end; return the reason."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[str] = loop.create_future()

    def follow() -> None:
        reason = read_log()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(ended.set_result, reason)

    loop.set_exception_handler(_log_exception)
    threading.Thread(target=follow, name="llama-server's log", daemon=True).start()
    config = uvicorn.Config(
        front, http=Connection, ws="none", loop="asyncio", lifespan="off", log_config=None, access_log=False,
        log_level=logging.CRITICAL, proxy_headers=False, server_header=False, date_header=False,
        timeout_keep_alive=IDLE_S, backlog=BACKLOG, timeout_graceful_shutdown=END_S,
    )  # fmt: skip
    server = _Server(config)
    serving = asyncio.ensure_future(server.serve([listener]))

    def on_end(done: asyncio.Future[None]) -> None:
        if not done.cancelled() and not ended.done():
            ended.set_exception(done.exception() or RuntimeError("the front has ended by itself"))

    serving.add_done_callback(on_end)
    try:
        with _woken_by_signals(loop):
            return await ended
    finally:
        close_worker()
        await server.end()
        serving.cancel()


@contextlib.contextmanager
def _woken_by_signals(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Let signals end the loop's wait.

    Without it, a handler of Python only runs after the next event if another thread gets the signal, or if it arrives
    immediately before the wait.
    """
    if sys.platform == "win32":  # its loop does that by itself
        yield
        return
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        loop.add_reader(ours, ours.recv, 4096)
        before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(ours)


def _log_exception(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    console.warn(f"{context.get('exception') or context['message']}.")


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to those who end the child."""
        yield

    async def main_loop(self) -> None:
        """Wait until the task is cancelled, without uvicorn's ten wake-ups per second."""
        await self.on_tick(0)
        await asyncio.Event().wait()

    async def end(self) -> None:
        """Let answers end, then close all connections: a client that does not read would keep its answer's task."""
        if self.started:
            await self.shutdown()
        for connection in [*self.server_state.connections]:
            connection.transport.abort()
        await asyncio.sleep(0)


class Connection(H11Protocol):
    """A client's connection: silent clients are closed, and what is no HTTP gets a reason."""

    conn: h11.Connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self._expect(FIRST_S)

    def data_received(self, data: bytes) -> None:
        if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            if data[:1] == bytes([TLS_HANDSHAKE]):
                return self.send_400_response(NO_TLS)
            data = data.lstrip(b"\r\n")  # some clients send line breaks behind a body (RFC 9112, section 2.2)
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._expect(HEAD_S)

    def _expect(self, seconds: float) -> None:
        """Close the connection unless the head of a request arrives in time."""
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def on_response_complete(self) -> None:
        rest = self.conn.trailing_data[0]
        if rest[:1] in (b"\r", b"\n") and {*self.conn.states.values()} == {h11.DONE}:
            self.conn = h11.Connection(h11.SERVER)  # without these line breaks, which h11 refuses
            super().on_response_complete()
            if rest := rest.lstrip(b"\r\n"):
                self.data_received(rest)
        else:
            super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, unless an answer has begun, and close the connection."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return self.transport.close()
        if msg == NO_TLS:
            console.warn("a client speaks TLS, which this server does not: its address must begin with http://.")
        body = f"{NO_TLS}\n".encode() if msg == NO_TLS else Refusal(400).body("", {})
        kind = b"text/plain" if msg == NO_TLS else b"application/json; charset=utf-8"
        head = b"HTTP/1.1 400 Bad Request\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        self.transport.write(head % (kind, len(body)) + body)
        self.transport.close()


@contextlib.contextmanager
def listener_on(host: str, port: int) -> Iterator[socket.socket]:
    """Yield the socket of the address. Raises `EnvironmentFailure`."""
    is_file = host.endswith(".sock")
    try:
        if is_file:
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(host)
        else:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            listener = socket.socket(family)
            if sys.platform != "win32":  # there the option lets another program take the same port
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        listener.listen(BACKLOG)  # the address may be announced before uvicorn accepts
    except OSError as error:
        place = host if is_file else f"{host}:{port}"
        raise EnvironmentFailure(
            f"cannot listen on {place} ({error.strerror or error}). Choose another --host or --port."
        ) from None
    try:
        yield listener
    finally:
        listener.close()
        if is_file:
            Path(host).unlink(missing_ok=True)


def url_of(host: str, listener: socket.socket) -> str:
    if host.endswith(".sock"):
        return f"unix://{host}"
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
