"""Endpoints of ollama's API, over chats and the child's raw API."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llama_eagle.errors import EagleError
from llama_eagle.serving import chats
from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.apis.completions.infill import raw_infill
from llama_eagle.serving.apis.vectors import OPENAI, vectors
from llama_eagle.serving.events import LINES, Answer, JSONAnswer, PieceStream, all_pieces, compact
from llama_eagle.serving.llama_server.served import served
from llama_eagle.serving.llama_server.slots import Step, Steps, ask_json, start
from llama_eagle.serving.ollama import bodies, models, replies
from llama_eagle.serving.ollama.bodies import Body
from llama_eagle.serving.ollama.replies import Reply
from llama_eagle.serving.pieces import End, Piece

VERSION = "0.12.0"  # of the API: clients compare it with versions that gained a feature
CHAT, GENERATE = "/api/chat", "/api/generate"
SAY: dict[str, Callable[..., Body]] = {CHAT: replies.chat_line, GENERATE: replies.generate_line}
WORK = ("messages", "prompt", "images")  # fields of requests that do more than load or unload a model
NOT_KEPT = (0, "0", "0s", "0m")  # values of keep_alive
Endpoint = Callable[[Request], Awaitable[Response | PieceStream]]


async def _body(request: Request) -> Body:
    return bodies.read_body(await request.body())


async def _models(request: Request) -> list[Body]:
    return [*(await ask_json(request.app, "GET", "/v1/models"))["data"]]


async def _name(request: Request, body: Body) -> str:
    """Return the name that the client uses for the model. Raises `Refusal` for another model."""
    name, model = bodies.model_name(body), await served(request.app)
    models.require_model([{"id": model.name, "aliases": model.names}], name)
    return name


async def _answer(answer: Answer, reply: Reply, *, is_stream: bool) -> Response | PieceStream:
    """Answer with lines, or with one."""
    if not is_stream:
        return JSONAnswer(reply.whole(await all_pieces(answer)))

    def written(piece: Piece) -> bytes:
        return _lines(reply.take(piece))

    return PieceStream(
        _Joined(answer), written, lambda refusal: _lines([{"error": str(refusal)}]), lambda: _lines(reply.end()), LINES
    )


class _Joined:
    """An answer whose pieces that arrive together are one: a pause follows each line."""

    def __init__(self, answer: Answer[Piece]) -> None:
        self._answer = answer

    async def read(self) -> list[Piece] | None:
        pieces = await self._answer.read()
        return [joined(pieces)] if pieces else None if pieces is None else []

    async def aclose(self) -> None:
        await self._answer.aclose()


def joined(pieces: Sequence[Piece]) -> Piece:
    """Return the pieces of one choice as one."""
    return replace(
        pieces[-1],
        reasoning="".join(piece.reasoning for piece in pieces),
        content="".join(piece.content for piece in pieces),
        calls=tuple(call for piece in pieces for call in piece.calls),
        logprobs=[entry for piece in pieces for entry in piece.logprobs or ()],
    )


def _is_stream(given: Body) -> bool:
    return given.get("stream", True) is not False


class _Completion:
    """An answer to a prompt without a chat: its text is content."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    async def read(self) -> list[Piece] | None:
        steps = await self._steps.read()
        return None if steps is None else [_piece(step) for step in steps]

    async def aclose(self) -> None:
        self._steps.close()


def _piece(step: Step) -> Piece:
    reason = "length" if step.stop == "limit" else "stop"
    end = End(reason, n_tokens=step.n_tokens, timings=step.timings or {}) if step.is_last else None
    return Piece(content=step.text, logprobs=step.probabilities, n_prompt=step.n_prompt, end=end)


def is_unload(path: str, given: Body) -> bool:
    """Return True for a request that only unloads the model."""
    return path in SAY and given.get("keep_alive") in NOT_KEPT and not any(given.get(key) for key in WORK)


def loaded(path: str, given: Body, name: str) -> Response:
    """Answer a request that only loads the model or unloads it. A single one is loaded as long as this server runs."""
    end = replies.ended("unload" if is_unload(path, given) else "load", time.monotonic())
    return _one_line(given, {"model": name, "created_at": replies.now(), **SAY[path](), **end})


def _one_line(given: Body, line: Body) -> Response:
    """Answer with one line, streamed or not."""
    return Response(_lines([line]), media_type=LINES.decode()) if _is_stream(given) else JSONAnswer(line)


def _lines(lines: Iterable[Body]) -> bytes:
    return b"".join(compact(line) + b"\n" for line in lines)


async def chat(request: Request) -> Response | PieceStream:
    given = await _body(request)
    name = await _name(request, given)
    if not given.get("messages"):
        return loaded(CHAT, given, name)
    return await _chat(request, bodies.chat(given), Reply(name, replies.chat_line), is_stream=_is_stream(given))


async def _chat(request: Request, body: Body, reply: Reply, *, is_stream: bool) -> Response | PieceStream:
    answer = await chats.open_chat(request.app, {**body, "stream": is_stream})
    return await _answer(answer, reply, is_stream=is_stream)


async def generate(request: Request) -> Response | PieceStream:
    given = await _body(request)
    name = await _name(request, given)
    if not given.get("prompt") and not given.get("images"):
        return loaded(GENERATE, given, name)
    reply, is_stream = Reply(name, replies.generate_line), _is_stream(given)
    if not given.get("raw") and not given.get("suffix"):
        return await _chat(request, bodies.generated_chat(given), reply, is_stream=is_stream)
    body = {**bodies.completion(given), "stream": is_stream}
    if given.get("suffix"):
        body = await raw_infill(request.app, body)
    return await _answer(_Completion(await start(request.app, body)), reply, is_stream=is_stream)


async def embed(request: Request) -> Response:
    begun, given = time.monotonic(), await _body(request)
    name = await _name(request, given)
    found = await _vectors(request, given)
    vectors = [entry["embedding"] for entry in found.get("data", [])]
    numbers = {key: value for key, value in replies.ended("", begun).items() if key.endswith("duration")}
    count = (found.get("usage") or {}).get("prompt_tokens", 0)
    return JSONAnswer({"model": name, "embeddings": vectors, **numbers, "prompt_eval_count": count})


async def embeddings(request: Request) -> Response:
    given = await _body(request)
    await _name(request, given)
    found = await _vectors(request, given)
    return JSONAnswer({"embedding": found["data"][0]["embedding"] if found.get("data") else []})


async def _vectors(request: Request, given: Body) -> Body:
    texts = [text for text in bodies.inputs(given) if text]
    more = {"dimensions": given["dimensions"]} if given.get("dimensions") else {}
    return json.loads(await vectors(request.app, OPENAI, {"input": texts, **more})) if texts else {}


async def tags(request: Request) -> Response:
    return JSONAnswer({"models": await _listed(request)})


async def running(request: Request) -> Response:
    loaded = [{**entry, "size_vram": 0, "expires_at": models.NEVER} for entry in await _listed(request)]
    return JSONAnswer({"models": loaded})


async def _listed(request: Request) -> list[Body]:
    path = (await ask_json(request.app, "GET", "/props")).get("model_path") or ""
    return [models.listed(model, path, family_of(path)) for model in await _models(request)]


async def show(request: Request) -> Response:
    name = bodies.model_name(await _body(request))
    model = models.require_model(await _models(request), name)
    properties = await ask_json(request.app, "GET", "/props")
    family = family_of(properties.get("model_path") or "")
    return JSONAnswer(models.shown(model, properties, family, has_vectors=request.app.settings.has_vectors))


@lru_cache(maxsize=8)
def family_of(path: str) -> str:
    """Return the architecture of a model file; empty if it cannot be read."""
    from llama_eagle.gguf.header import read_header

    try:
        return read_header(Path(path)).architecture
    except (EagleError, OSError):
        return ""


async def pull(request: Request) -> Response:
    """Succeed for the model that is served: clients pull what they miss in a list."""
    given = await _body(request)
    await _name(request, given)
    return _one_line(given, {"status": "success"})


async def unchanged(request: Request) -> Response:
    """Refuse what would change models."""
    raise Refusal(403, "this server changes no models: llama-eagle pull, list and remove do")


async def version(request: Request) -> Response:
    return JSONAnswer({"version": VERSION})


METHODS = ["GET", "HEAD", "POST", "DELETE"]
_ENDPOINTS: dict[str, Endpoint] = {
    "chat": chat, "copy": unchanged, "create": unchanged, "delete": unchanged, "embed": embed,
    "embeddings": embeddings, "generate": generate, "ps": running, "pull": pull, "push": unchanged, "show": show,
    "tags": tags, "version": version,
}  # fmt: skip
ROUTES = [Route(f"/api/{name}", each, methods=METHODS) for name, each in _ENDPOINTS.items()]
