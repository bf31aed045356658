"""Streams of server-sent events, and of lines, over the pieces of an answer to a chat."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from starlette.types import Receive, Scope, Send

from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.pieces import Piece

EVENTS = b"text/event-stream"
COMMENT = b":\n\n"  # keeps a connection open whose client waits


class Answer(Protocol):
    """An answer to a chat: pieces as they arrive. An empty list is a sign of life, None the end."""

    async def read(self) -> list[Piece] | None: ...
    async def aclose(self) -> None: ...


class PieceStream:
    """ASGI response with what `written` makes of each piece. Pieces that arrive together share a write, no event.

    failed: returns what ends an answer that fails within. finished: returns what follows the last piece. comment: sent
    when the child gives a sign of life, without a piece.
    """

    def __init__(
        self,
        answer: Answer,
        written: Callable[[Piece], bytes],
        failed: Callable[[Refusal], bytes],
        finished: Callable[[], bytes] = bytes,
        *,
        kind: bytes = EVENTS,
        comment: bytes = COMMENT,
    ) -> None:
        self._answer = answer
        self._written = written
        self._failed = failed
        self._finished = finished
        self._kind = kind
        self._comment = comment

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(data: bytes, *, is_last: bool = False) -> None:
            if data or is_last:
                await send({"type": "http.response.body", "body": data, "more_body": not is_last})

        try:
            headers = [(b"content-type", self._kind), (b"x-accel-buffering", b"no")]  # nginx keeps nothing back
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            try:
                while (pieces := await self._answer.read()) is not None:
                    await write(b"".join(map(self._written, pieces)) if pieces else self._comment)
            except Refusal as refusal:
                await write(self._failed(refusal), is_last=True)
            else:
                await write(self._finished(), is_last=True)
        finally:
            await self._answer.aclose()


async def all_pieces(answer: Answer) -> list[Piece]:
    """Return the pieces of an answer and close it. Raises `Refusal`."""
    found: list[Piece] = []
    try:
        while (pieces := await answer.read()) is not None:
            found += pieces
    finally:
        await answer.aclose()
    return found


def named_events(events: Iterable[dict[str, Any]]) -> bytes:
    """Return events whose names are their types, as Messages and Responses send them."""
    return b"".join(b"event: %s\ndata: %s\n\n" % (event["type"].encode(), compact(event)) for event in events)


def compact(value: Any) -> bytes:
    """Return JSON on one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
