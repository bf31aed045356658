"""Scales of LoRA adapters, for the requests that do not set their own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from llama_eagle.serving.llama_server import slots
from llama_eagle.serving.llama_server.served import served
from llama_eagle.serving.passing import PassedOn
from llama_eagle.serving.requests.json_body import read_json
from llama_eagle.serving.requests.lists import require_adapters

if TYPE_CHECKING:
    from llama_eagle.serving.http import Front

PATH = "/lora-adapters"


def routes(prefix: str = "") -> list[BaseRoute]:
    """Return the route. prefix: that of all paths."""
    return [Route(f"{prefix}{PATH}", scale, methods=["POST"])]


async def scale(request: Request) -> PassedOn:
    """Pass scales on. The child would ignore invalid ones."""
    front: Front = request.app
    given = read_json(await request.body())
    require_adapters(given, (await served(front)).n_adapters)
    return PassedOn(await slots.ask(front, "POST", PATH, json.dumps(given).encode()))
