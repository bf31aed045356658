"""The list of models, for OpenAI's and Anthropic's clients, and a single model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.events import JSONAnswer
from llama_eagle.serving.llama_server import slots

PATH = "/v1/models"


def routes(prefix: str = "") -> list[BaseRoute]:
    """Return the routes. prefix: that of all paths."""
    endpoints = {PATH: show_list, f"{PATH}/{{id:path}}": show_one}
    return [Route(f"{prefix}{path}", each) for path, each in endpoints.items()]


async def show_list(request: Request) -> Response:
    return JSONAnswer(described(await slots.ask_json(request.app, "GET", PATH)))


async def show_one(request: Request) -> Response:
    found = described(await slots.ask_json(request.app, "GET", PATH))
    return JSONAnswer(one_of(found, request.path_params["id"]))


def described(found: dict[str, Any]) -> dict[str, Any]:
    """Add the fields of Anthropic's models."""
    models = [
        {
            **model,
            "type": "model",
            "display_name": model["id"],
            "created_at": f"{datetime.fromtimestamp(model.get('created', 0), timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
        }
        for model in found["data"]
    ]
    ends = [models[0]["id"], models[-1]["id"]] if models else [None, None]
    return {**found, "data": models, "has_more": False, "first_id": ends[0], "last_id": ends[1]}


def one_of(found: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the model with this id or alias. Raises `Refusal`."""
    for model in found["data"]:
        if name in (model["id"], *model.get("aliases", ())):
            return dict(model)
    raise Refusal(404, f"this server has no model '{name}', only {', '.join(_quoted(found))}", "model_not_found")


def _quoted(found: dict[str, Any]) -> Iterator[str]:
    yield from (json.dumps(model["id"], ensure_ascii=False) for model in found["data"])
