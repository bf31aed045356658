"""Tokens of a text and the text of tokens, by the child's routes, which would use defaults for wrong types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from llama_eagle.serving.api_errors import require
from llama_eagle.serving.events import JSONAnswer
from llama_eagle.serving.llama_server import slots
from llama_eagle.serving.llama_server.served import served
from llama_eagle.serving.requests.json_body import read_json_body, without_nulls
from llama_eagle.serving.requests.parameters import require_tokens

if TYPE_CHECKING:
    from llama_eagle.serving.http import Front

PATHS = ("/tokenize", "/detokenize")
SWITCHES = ("add_special", "parse_special", "with_pieces")


def routes(prefix: str = "") -> list[BaseRoute]:
    """Return the routes. prefix: that of all paths."""
    return [Route(f"{prefix}{path}", convert, methods=["POST"]) for path in PATHS]


async def convert(request: Request) -> Response:
    front: Front = request.app
    body = without_nulls(read_json_body(await request.body()))
    for key in SWITCHES:
        require(isinstance(body.get(key, False), bool), f"'{key}' is not true or false")
    _require_parts(body, "content", "neither a text nor a list", "neither a text nor a token id")
    _require_parts(body, "tokens", "no list", "no token id")
    require_tokens([body.get("content"), body.get("tokens")], (await served(front)).n_vocab)
    path = request.scope["path"].removeprefix(front.settings.prefix)
    return JSONAnswer(await slots.ask_json(front, "POST", path, body))


def _require_parts(body: dict[str, Any], key: str, wrong: str, wrong_part: str) -> None:
    """Refuse what is neither a list of token ids nor, for "content", a text or a list with texts."""
    value, takes_text = body.get(key, []), key == "content"
    if takes_text and isinstance(value, str):
        return
    require(isinstance(value, list), f"'{key}' is {wrong}")
    for part in value:
        is_id = isinstance(part, int) and not isinstance(part, bool)
        require(is_id or (takes_text and isinstance(part, str)), f"'{key}' has a part that is {wrong_part}")
