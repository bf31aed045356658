"""The health of the server: a supervisor restarts one that cannot answer."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.events import JSONAnswer
from llama_eagle.serving.http import HEALTH
from llama_eagle.serving.llama_server import slots


def routes(prefix: str = "") -> list[BaseRoute]:
    """Return the routes. prefix: that of all paths."""
    return [Route(f"{prefix}{path}", show) for path in HEALTH]


async def show(request: Request) -> Response:
    """Answer with the child's state, or with the reason why it can answer no request: a lost RPC server."""
    state = await slots.ask_json(request.app, "GET", HEALTH[0])
    properties = await slots.ask_json(request.app, "GET", "/props")
    if reason := properties.get("unusable"):
        raise Refusal(503, reason)
    return JSONAnswer(state)
