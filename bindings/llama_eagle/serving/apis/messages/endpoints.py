"""Anthropic's Messages API: answers to chats as content blocks, and the number of tokens of a prompt."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from llama_eagle.serving import chats
from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.apis.messages.bodies import chat_body
from llama_eagle.serving.apis.messages.events import Message
from llama_eagle.serving.events import JSONAnswer, PieceStream, all_pieces, named_events
from llama_eagle.serving.pieces import Piece
from llama_eagle.serving.requests.json_body import read_json_body

PATH = "/v1/messages"


def routes(prefix: str = "") -> list[BaseRoute]:
    """Return the routes. prefix: that of all paths."""
    return [
        Route(f"{prefix}{PATH}", create, methods=["POST"]),
        Route(f"{prefix}{PATH}/count_tokens", count_tokens, methods=["POST"]),
    ]


async def create(request: Request) -> Response | PieceStream:
    body = chat_body(read_json_body(await request.body()))
    answer = await chats.open_chat(request.app, body)
    message = Message(answer.model.name)
    if not answer.request.has_stream:
        for piece in await all_pieces(answer):
            message.add(piece)
        return JSONAnswer(message.whole)

    def written(piece: Piece) -> bytes:
        return named_events(message.add(piece))

    return PieceStream(answer, written, _failed)


async def count_tokens(request: Request) -> Response:
    body = chat_body(read_json_body(await request.body()))
    return JSONAnswer({"input_tokens": await chats.count_tokens(request.app, body)})


def _failed(refusal: Refusal) -> bytes:
    return named_events([refusal.for_messages()])
