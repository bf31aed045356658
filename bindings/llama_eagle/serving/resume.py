"""Streams that continue when their client goes, and that it can read again (header X-Conversation-Id).

The chat page of llama-server uses them: a conversation has at most one stream, which is kept for a while after its end.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.events import JSONAnswer
from llama_eagle.serving.requests.json_body import read_json_body

HEADER = b"x-conversation-id"
KEPT_S = 300  # seconds after the end of a stream
KEPT_BYTES = 4 << 20  # of each stream: older bytes are dropped
MAX_STREAMS = 64  # that are kept


class Session:
    """The bytes of a stream. n_dropped: those before the ones that are kept."""

    def __init__(self) -> None:
        self.started_at = int(time.time())
        self.completed_at = 0
        self.n_dropped = 0
        self.head: Message | None = None
        self.data = bytearray()
        self.task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    @property
    def size(self) -> int:
        return self.n_dropped + len(self.data)

    async def send(self, message: Message) -> None:
        """Take a message of an ASGI response."""
        if message["type"] == "http.response.start":
            self.head = message
        self.data += message.get("body", b"")
        if (n := len(self.data) - KEPT_BYTES) > 0:
            del self.data[:n]
            self.n_dropped += n
        self._wake()

    def end(self, *_: object) -> None:
        self.completed_at = self.completed_at or int(time.time())
        self._wake()

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()
        self.end()

    async def replay(self, at: int, send: Send) -> None:
        """Send the bytes from an offset on, until the stream ends."""
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        while True:
            news = self._news
            if at < self.n_dropped:
                raise ConnectionError("the client reads too slowly")
            if part := bytes(self.data[at - self.n_dropped :]):
                at = self.size
                await send({"type": "http.response.body", "body": part, "more_body": True})
            elif self.completed_at:
                return await send({"type": "http.response.body", "body": b""})
            else:
                await news.wait()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class Sessions:
    """The streams of a server, by the id of the conversation."""

    def __init__(self) -> None:
        self._all: dict[str, Session] = {}

    def resumable(self, response: ASGIApp, scope: Scope) -> ASGIApp:
        """Return a response that continues without its client, if the request names a conversation."""
        name = dict(scope["headers"]).get(HEADER, b"").decode("latin-1")
        if not name:
            return response
        self.stop(name)
        session = self._all[name] = Session()
        self._forget()

        async def receive() -> Message:
            return await asyncio.get_running_loop().create_future()

        session.task = asyncio.ensure_future(_run(response, scope, receive, session))
        session.task.add_done_callback(session.end)
        return _Replay(session)

    def get(self, name: str) -> Session | None:
        self._forget()
        return self._all.get(name)

    def stop(self, name: str) -> None:
        if session := self._all.pop(name, None):
            session.cancel()

    def known(self, names: list[str]) -> list[dict[str, Any]]:
        """Return what is known of these conversations; a name stands for all its models ("name::model")."""
        self._forget()
        return [
            {
                "conversation_id": key, "is_done": bool(each.completed_at), "total_bytes": each.size,
                "started_at": each.started_at, "completed_at": each.completed_at,
            }
            for name in names
            for key, each in self._all.items()
            if key == name or key.startswith(f"{name}::")
        ]  # fmt: skip

    def _forget(self) -> None:
        """Drop streams whose time is over, and the oldest of too many that have ended."""
        ended = [(each.completed_at, key) for key, each in self._all.items() if each.completed_at]
        n_surplus = max(0, len(self._all) - MAX_STREAMS)
        for i, (at, key) in enumerate(sorted(ended)):
            if i < n_surplus or at + KEPT_S < time.time():
                del self._all[key]


async def _run(response: ASGIApp, scope: Scope, receive: Receive, session: Session) -> None:
    await response(scope, receive, session.send)


class _Replay:
    def __init__(self, session: Session, at: int = 0) -> None:
        self._session = session
        self._at = at

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._session.replay(self._at, send)


def routes(prefix: str = "") -> list[BaseRoute]:
    return [
        Route(f"{prefix}/v1/stream", read, methods=["GET"]),
        Route(f"{prefix}/v1/stream", stop, methods=["DELETE"]),
        Route(f"{prefix}/v1/streams/lookup", look_up, methods=["POST"]),
    ]


def _name(request: Request) -> str:
    name = request.query_params.get("conv_id", "")
    if not name:
        raise Refusal(400, "'conv_id' is missing: name a conversation")
    return name


async def read(request: Request) -> Any:
    """Send a stream again, from the byte `from` on."""
    session = request.app.sessions.get(_name(request))
    if session is None:
        raise Refusal(404, "this conversation has no stream, or it has expired")
    given = request.query_params.get("from", "0")
    if not given.isdecimal() or len(given) > 18:
        raise Refusal(400, "'from' is no number of bytes")
    if int(given) < session.n_dropped:
        raise Refusal(400, "the beginning of this stream is no longer kept: send the request again")
    return _Replay(session, int(given))


async def stop(request: Request) -> Response:
    request.app.sessions.stop(_name(request))
    return Response(status_code=204)


async def look_up(request: Request) -> Response:
    names = read_json_body(await request.body()).get("conversation_ids")
    listed = [name for name in names if isinstance(name, str) and name] if isinstance(names, list) else []
    return JSONAnswer(request.app.sessions.known(listed))
