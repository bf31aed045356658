"""Completions: OpenAI's API over raw requests to the slots, and llama.cpp's own."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from llama_eagle.serving.apis.chat import DONE
from llama_eagle.serving.apis.completions.bodies import CompletionRequest, check_own, read_completion
from llama_eagle.serving.apis.completions.choices import Choices, Echo
from llama_eagle.serving.apis.completions.infill import prompts_before
from llama_eagle.serving.events import JSONAnswer, PieceStream, all_pieces, compact, failed
from llama_eagle.serving.llama_server import slots
from llama_eagle.serving.llama_server.served import served
from llama_eagle.serving.passing import passed_on
from llama_eagle.serving.requests.json_body import read_json_body

if TYPE_CHECKING:
    from llama_eagle.serving.http import Front

PATH = "/v1/completions"
OWN_PATHS = ("/completion", "/completions")
FIELDS = [*slots.FIELDS, "prompt_probabilities"]


def routes(prefix: str = "") -> list[BaseRoute]:
    """Return the routes. prefix: that of all paths."""
    own = [Route(f"{prefix}{path}", complete_raw, methods=["POST"]) for path in OWN_PATHS]
    return [Route(f"{prefix}{PATH}", complete, methods=["POST"]), *own]


async def complete(request: Request) -> Any:
    """Answer a request of OpenAI's API."""
    front: Front = request.app
    model = await served(front)
    asked = read_completion(read_json_body(await request.body()), model)
    echoes = await _echoes(front, asked, adds_bos=model.adds_bos)
    raw = {**asked.raw, "response_fields": [] if asked.is_verbose else FIELDS}
    if asked.suffix:
        raw["prompt"] = await prompts_before(front, asked.prompts, asked.suffix, raw)
    steps = await slots.start(front, raw)
    choices = Choices(asked, model.name, model.build, echoes)
    if asked.has_stream:
        return PieceStream(steps, lambda step: _event(choices.chunk(step)), failed, lambda: _end(choices.last_chunk()))
    return JSONAnswer(choices.whole(await all_pieces(steps)))


def _event(chunk: Any) -> bytes:
    return b"data: %s\n\n" % compact(chunk)


def _end(last: Any) -> bytes:
    return (_event(last) if last else b"") + DONE


async def _echoes(front: Front, asked: CompletionRequest, *, adds_bos: bool) -> list[Echo]:
    """Return the prompts that the request wants before its answers."""
    if not asked.has_echo:
        return []
    return [await _echo(front, prompt, adds_bos) for prompt in asked.prompts]


async def _echo(front: Front, prompt: Any, adds_bos: bool) -> Echo:
    """Return the text of a prompt. Only a prompt that begins with a text gets BOS, which is not in it."""
    parts = prompt if isinstance(prompt, list) else [prompt]
    text = ""
    for is_ids, group in groupby(parts, key=lambda part: type(part) is int):
        if is_ids:
            text += (await slots.ask_json(front, "POST", "/detokenize", {"tokens": list(group)}))["content"]
        else:
            texts = (part.get("prompt_string") if isinstance(part, dict) else part for part in group)
            text += "".join(each for each in texts if isinstance(each, str))
    begins_with_text = bool(parts) and not isinstance(parts[0], int)
    return Echo(text, int(adds_bos and begins_with_text))


async def complete_raw(request: Request) -> Any:
    """Pass a request of llama.cpp's own API on, after checks."""
    body = check_own(read_json_body(await request.body()), await served(request.app))
    return await passed_on(request.app, slots.PATH, body)
