"""Answers of the child that a route of the front passes on as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.types import Receive, Scope, Send

from llama_eagle.serving.events import JSONAnswer, PieceStream, all_pieces, compact, failed
from llama_eagle.serving.llama_server import slots
from llama_eagle.serving.llama_server.indentation import Indentation
from llama_eagle.serving.llama_server.slots import Events
from llama_eagle.serving.llama_server.streams import Answer

if TYPE_CHECKING:
    from llama_eagle.serving.http import Front


class PassedOn:
    """ASGI response with a child's answer."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [pair for pair in self._answer.headers if pair[0] in (b"content-type", b"content-length")]
        try:
            await send({"type": "http.response.start", "status": self._answer.status, "headers": headers})
            while part := await self._answer.part():
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._answer.close()


async def passed_on(front: Front, path: str, body: Mapping[str, Any]) -> Any:
    """Return the child's answer to a body, as it arrives. Raises `Refusal` for its errors."""
    answer = await slots.begin(front, body, path)
    if Indentation.of(body) is None:
        return PassedOn(answer)
    events = Events(answer, body)
    if body.get("stream"):
        return PieceStream(events, lambda event: b"data: %s\n\n" % compact(event), failed)
    found = await all_pieces(events)
    return JSONAnswer(found[0] if len(found) == 1 else found)
