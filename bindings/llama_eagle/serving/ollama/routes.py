"""Endpoints of ollama's API. Each asks the child in its own API."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import lru_cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from llama_eagle.errors import EagleError
from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.child import NotReady
from llama_eagle.serving.http import read_body
from llama_eagle.serving.ollama import bodies, models, replies
from llama_eagle.serving.ollama.bodies import Body
from llama_eagle.serving.ollama.replies import Reply
from llama_eagle.serving.streams import Answer

VERSION = "0.12.0"  # of the API: clients compare it with versions that gained a feature
LINES = "application/x-ndjson"
Endpoint = Callable[[Request], Awaitable[Response]]


class ChildError(Exception):
    """An error that the child answers with. text: its message."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def _endpoint(endpoint: Endpoint) -> Endpoint:
    """Give errors ollama's form."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Refusal as refusal:
            return _error(refusal.status, str(refusal))
        except ChildError as error:
            return _error(error.status, str(error))
        except NotReady:
            return _error(503, "the model is still being loaded")

    return answer


def _error(status: int, text: str) -> Response:
    return JSONResponse({"error": text}, status)


async def _body(request: Request) -> Body:
    data = await read_body(request.receive, dict(request.scope["headers"]), request.app.settings.max_body)
    return bodies.read_body(data)


async def _open(request: Request, target: str, body: Body | None = None) -> Answer:
    """Return the child's answer. Raises `ChildError`."""
    data = b"" if body is None else json.dumps(body).encode()
    method = "GET" if body is None else "POST"
    answer: Answer = await request.app.child.request(
        method, f"{request.app.settings.prefix}{target}".encode(), [(b"content-type", b"application/json")], data
    )
    if answer.status == 200:
        return answer
    try:
        error = json.loads(await answer.read()).get("error")
    except (ValueError, AttributeError):
        error = None
    finally:
        answer.close()
    text = error.get("message") if isinstance(error, dict) else error
    raise ChildError(answer.status, str(text or f"llama-server answers with status {answer.status}"))


async def _ask(request: Request, target: str, body: Body | None = None) -> Body:
    answer = await _open(request, target, body)
    try:
        found: Body = json.loads(await answer.read())
        return found
    finally:
        answer.close()


async def _models(request: Request) -> list[Body]:
    """Return the child's models, with what they can do."""
    found = await _ask(request, "/v1/models")
    can = {model["name"]: model.get("capabilities", []) for model in found.get("models", [])}
    return [{**model, "capabilities": can.get(model["id"], [])} for model in found["data"]]


async def _model(request: Request, body: Body) -> tuple[str, Body]:
    """Return the name that the client uses, and the model."""
    name = bodies.model_name(body)
    return name, models.require_model(await _models(request), name)


async def _answer(request: Request, target: str, body: Body, given: Body, reply: Reply) -> Response:
    """Answer with lines, or with one. body: for the child. given: the client's."""
    if given.get("stream", True) is False:
        event = await _ask(request, target, body)
        return JSONResponse(reply.whole(event))
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    answer = await _open(request, target, streamed)  # an error has its status
    return StreamingResponse(_lines(answer, reply), media_type=LINES)


async def _lines(answer: Answer, reply: Reply) -> AsyncIterator[bytes]:
    """Yield one line at a time: some clients parse what one read returns."""
    rest = b""
    try:
        while part := await answer.part():
            *whole, rest = (rest + part).split(b"\n")
            for event in bodies.events(line.decode() for line in whole):
                if error := event.get("error"):
                    text = error.get("message", "") if isinstance(error, dict) else str(error)
                    yield json.dumps({"error": text}).encode() + b"\n"
                    return
                for line in reply.take(event):
                    yield json.dumps(line, ensure_ascii=False).encode() + b"\n"
        for line in reply.end():
            yield json.dumps(line, ensure_ascii=False).encode() + b"\n"
    finally:
        answer.close()


def _loaded(given: Body, name: str, say: Callable[..., Body]) -> Response:
    """Answer a request that only loads the model or unloads it: it is loaded as long as this server runs."""
    reason = "unload" if given.get("keep_alive") in (0, "0", "0s") else "load"
    line = {"model": name, "created_at": replies.now(), **say(), **replies.ended(reason, time.monotonic())}
    return _one_line(given, line)


def _one_line(given: Body, line: Body) -> Response:
    """Answer with one line, streamed or not."""
    return JSONResponse(line) if given.get("stream", True) is False else _stream_of([line])


def _stream_of(lines: list[Body]) -> Response:
    return Response("".join(json.dumps(line) + "\n" for line in lines), media_type=LINES)


async def chat(request: Request) -> Response:
    given = await _body(request)
    name, _ = await _model(request, given)
    if not given.get("messages"):
        return _loaded(given, name, replies.chat_line)
    return await _answer(request, "/v1/chat/completions", bodies.chat(given), given, Reply(name, replies.chat_line))


async def generate(request: Request) -> Response:
    given = await _body(request)
    name, _ = await _model(request, given)
    if not given.get("prompt") and not given.get("images"):
        return _loaded(given, name, replies.generate_line)
    reply = Reply(name, replies.generate_line)
    if given.get("raw"):
        raw = {"prompt": given["prompt"], **bodies.settings(given)}
        return await _answer(request, "/v1/completions", raw, given, reply)
    if given.get("suffix"):
        return await _infill(request, given, reply)
    return await _answer(request, "/v1/chat/completions", bodies.generated_chat(given), given, reply)


async def _infill(request: Request, given: Body, reply: Reply) -> Response:
    """Answer with the text between a prompt and a suffix, as one line."""
    body = bodies.settings(given)
    body["n_predict"] = body.pop("max_tokens", -1)
    found = await _ask(
        request, "/infill", {**body, "input_prefix": given["prompt"], "input_suffix": given["suffix"], "stream": False}
    )
    timings = found.get("timings") or {}
    usage = {"prompt_tokens": found.get("tokens_evaluated"), "completion_tokens": found.get("tokens_predicted")}
    reason = "length" if found.get("stop_type") == "limit" else "stop"
    choice = {"text": found.get("content", ""), "finish_reason": reason}
    event = {"choices": [choice], "usage": usage, "timings": timings}
    if given.get("stream", True) is False:
        return JSONResponse(reply.whole(event))
    return _stream_of([*reply.take(event), *reply.end()])


async def embed(request: Request) -> Response:
    begun, given = time.monotonic(), await _body(request)
    name, _ = await _model(request, given)
    found = await _vectors(request, given)
    vectors = [entry["embedding"] for entry in found.get("data", [])]
    numbers = {key: value for key, value in replies.ended("", begun).items() if key.endswith("duration")}
    count = (found.get("usage") or {}).get("prompt_tokens", 0)
    return JSONResponse({"model": name, "embeddings": vectors, **numbers, "prompt_eval_count": count})


async def embeddings(request: Request) -> Response:
    given = await _body(request)
    await _model(request, given)
    found = await _vectors(request, given)
    return JSONResponse({"embedding": found["data"][0]["embedding"] if found.get("data") else []})


async def _vectors(request: Request, given: Body) -> Body:
    texts = [text for text in bodies.inputs(given) if text]
    more = {"dimensions": given["dimensions"]} if given.get("dimensions") else {}
    return await _ask(request, "/v1/embeddings", {"input": texts, **more}) if texts else {}


async def tags(request: Request) -> Response:
    return JSONResponse({"models": await _listed(request)})


async def running(request: Request) -> Response:
    loaded = [{**entry, "size_vram": 0, "expires_at": models.NEVER} for entry in await _listed(request)]
    return JSONResponse({"models": loaded})


async def _listed(request: Request) -> list[Body]:
    path = (await _ask(request, "/props")).get("model_path") or ""
    return [models.listed(model, path, _family(path)) for model in await _models(request)]


async def show(request: Request) -> Response:
    _, model = await _model(request, await _body(request))
    properties = await _ask(request, "/props")
    family = _family(properties.get("model_path") or "")
    return JSONResponse(models.shown(model, properties, family))


@lru_cache(maxsize=8)
def _family(path: str) -> str:
    """Return the architecture of a model file; empty if it cannot be read."""
    from llama_eagle.gguf.header import read_header

    try:
        return read_header(Path(path)).architecture
    except (EagleError, OSError):
        return ""


async def pull(request: Request) -> Response:
    """Succeed for the model that is served: clients pull what they miss in a list."""
    given = await _body(request)
    await _model(request, given)
    return _one_line(given, {"status": "success"})


async def unchanged(request: Request) -> Response:
    """Refuse what would change models."""
    raise Refusal(403, "this server changes no models: llama-eagle pull, list and remove do")


async def version(request: Request) -> Response:
    return JSONResponse({"version": VERSION})


METHODS = ["GET", "HEAD", "POST", "DELETE"]
_ENDPOINTS: dict[str, Endpoint] = {
    "chat": chat, "copy": unchanged, "create": unchanged, "delete": unchanged, "embed": embed,
    "embeddings": embeddings, "generate": generate, "ps": running, "pull": pull, "push": unchanged, "show": show,
    "tags": tags, "version": version,
}  # fmt: skip
ROUTES = [Route(f"/api/{name}", _endpoint(each), methods=METHODS) for name, each in _ENDPOINTS.items()]
