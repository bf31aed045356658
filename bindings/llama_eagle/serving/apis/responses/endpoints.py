"""OpenAI's Responses API: a response is the answer to a chat, in items."""

from __future__ import annotations

from starlette.requests import Request
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from llama_eagle.serving import chats
from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.apis.responses import bodies as response_bodies
from llama_eagle.serving.apis.responses import tools as response_tools
from llama_eagle.serving.apis.responses.events import ResponseEvents
from llama_eagle.serving.apis.responses.items import RecentItems
from llama_eagle.serving.events import JSONAnswer, PieceStream, all_pieces, named_events
from llama_eagle.serving.pieces import Piece
from llama_eagle.serving.requests.fields import Body
from llama_eagle.serving.requests.json_body import read_json_body

PATHS = ("/v1/responses", "/responses")


def routes(prefix: str = "") -> list[BaseRoute]:
    """Return the routes. prefix: that of all paths."""
    recent = RecentItems()

    async def respond(request: Request) -> ASGIApp:
        given = read_json_body(await request.body())
        answer = await chats.open_chat(request.app, response_bodies.read(given, recent))
        events = _events(answer, given, recent)
        return _stream(answer, events) if answer.request.has_stream else JSONAnswer(await _whole(answer, events))

    async def count(request: Request) -> JSONAnswer:
        body = response_bodies.read(read_json_body(await request.body()), recent)
        n_tokens = await chats.count_tokens(request.app, body)
        return JSONAnswer({"object": "response.input_tokens", "input_tokens": n_tokens})

    ends = (("", respond), ("/input_tokens", count))
    return [Route(f"{prefix}{path}{end}", each, methods=["POST"]) for path in PATHS for end, each in ends]


def _events(answer: chats.Answer, given: Body, recent: RecentItems) -> ResponseEvents:
    """Return the maker of the events of an answer. given: the request."""
    fields = response_bodies.repeated(given)
    for key in ("temperature", "top_p"):
        if fields[key] is None:
            fields[key] = round(answer.model.defaults[key], 6)
    return ResponseEvents(fields, response_tools.named(fields["tools"]), answer.model.name, recent.keep)


def _stream(answer: chats.Answer, events: ResponseEvents) -> PieceStream:
    def written(piece: Piece) -> bytes:
        return named_events(events.take(piece))

    def failed(refusal: Refusal) -> bytes:
        return named_events(events.fail(refusal))

    return PieceStream(answer, written, failed)


async def _whole(answer: chats.Answer, events: ResponseEvents) -> Body:
    """Return the response, with the timings of the answer. Raises `Refusal`."""
    timings: Body = {}
    for piece in await all_pieces(answer):
        events.take(piece)
        timings = piece.end.timings if piece.end else timings
    return events.response | ({"timings": timings} if timings else {})
