"""Streams of server-sent events, or of lines, over the pieces of an answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from llama_eagle.serving.api_errors import Refusal, as_refusal

Part = TypeVar("Part")
Part_co = TypeVar("Part_co", covariant=True)
EVENTS, LINES = b"text/event-stream", b"application/x-ndjson"
PAUSE_S = 0.003  # between two lines
COMMENT = b":\n\n"  # keeps a connection open whose client waits
JSON = "application/json; charset=utf-8"


class Answer(Protocol[Part_co]):
    """An answer: its pieces, or steps, as they arrive. An empty list is a sign of life, None the end."""

    async def read(self) -> Sequence[Part_co] | None: ...
    async def aclose(self) -> None: ...


class PieceStream(Generic[Part]):
    """ASGI response with what `written` makes of each piece. Pieces that arrive together share a write, no event.

    failed: returns what ends an answer that fails within. finished: returns what follows the last piece. kind: content
    type. `EVENTS` have a comment when the child gives a sign of life without a piece; each of `LINES` is a write of its
    own, with a pause, because some clients parse what one read returns.
    """

    def __init__(
        self,
        answer: Answer[Part],
        written: Callable[[Part], bytes],
        failed: Callable[[Refusal], bytes],
        finished: Callable[[], bytes] = bytes,
        kind: bytes = EVENTS,
    ) -> None:
        self._answer = answer
        self._written = written
        self._failed = failed
        self._finished = finished
        self._kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response: ASGIApp = self._send
        if self._kind == EVENTS:
            response = scope["app"].sessions.resumable(response, scope)
        await response(scope, receive, send)

    async def _send(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        async def write(data: bytes) -> None:
            for part in [data] if self._kind == EVENTS else data.splitlines(keepends=True):
                if part:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                    if self._kind == LINES:
                        await asyncio.sleep(PAUSE_S)

        headers = [(b"content-type", self._kind), (b"x-accel-buffering", b"no")]  # nginx keeps nothing back
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            try:
                while (pieces := await self._answer.read()) is not None:
                    await write(b"".join(map(self._written, pieces)) if pieces else self._sign_of_life())
                await write(self._finished())
            except Exception as error:  # the answer has begun, so it has no status
                await write(self._failed(as_refusal(error)))
            await send({"type": "http.response.body", "body": b""})
        finally:
            await self._answer.aclose()

    def _sign_of_life(self) -> bytes:
        return COMMENT if self._kind == EVENTS else b""


async def all_pieces(answer: Answer[Part]) -> list[Part]:
    """Return the pieces of an answer and close it. Raises `Refusal`."""
    found: list[Part] = []
    try:
        while (pieces := await answer.read()) is not None:
            found += pieces
    finally:
        await answer.aclose()
    return found


def failed(refusal: Refusal) -> bytes:
    """Return the event of an error within a stream of OpenAI's form, which ends it."""
    return b"data: %s\n\n" % compact(refusal.for_openai())


def named_events(events: Iterable[dict[str, Any]]) -> bytes:
    """Return events whose names are their types, as Messages and Responses send them."""
    return b"".join(b"event: %s\ndata: %s\n\n" % (event["type"].encode(), compact(event)) for event in events)


def compact(value: Any) -> bytes:
    """Return JSON on one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


class JSONAnswer(JSONResponse):
    """ASGI response with a whole answer. Half a character is replaced, as in streams."""

    media_type = JSON

    def render(self, content: Any) -> bytes:
        return compact(content)
