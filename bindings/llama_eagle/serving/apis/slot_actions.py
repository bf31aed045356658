"""Actions on a slot: its state is saved in a file, restored from one, or erased."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from llama_eagle.serving.api_errors import Refusal, require
from llama_eagle.serving.llama_server import slots
from llama_eagle.serving.llama_server.served import served
from llama_eagle.serving.passing import PassedOn

if TYPE_CHECKING:
    from llama_eagle.serving.http import Front


def routes(prefix: str = "") -> list[BaseRoute]:
    """Return the route. prefix: that of all paths."""
    return [Route(f"{prefix}/slots/{{slot}}", act, methods=["POST"])]


async def act(request: Request) -> PassedOn:
    """Pass an action on. For an id that no slot has, the child would take another slot."""
    front: Front = request.app
    if front.saved is not None:
        raise Refusal(501, "this server saves its slots itself (--cache-disk) and does not support slot actions")
    given = request.path_params["slot"]
    is_id = given.isascii() and given.isdecimal() and int(given) < (await served(front)).n_slots
    require(is_id, "Invalid slot ID")
    path = f"/slots/{given}?{request.scope['query_string'].decode('latin-1')}"
    return PassedOn(await slots.ask(front, "POST", path, await request.body()))
