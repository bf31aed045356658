"""Vectors of texts, and scores of documents for a query, over the child's routes for them."""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from llama_eagle.serving.api_errors import TOO_LONG, Refusal, require
from llama_eagle.serving.events import JSON, JSONAnswer
from llama_eagle.serving.llama_server import slots
from llama_eagle.serving.llama_server.raw_settings import require_whole
from llama_eagle.serving.llama_server.served import served
from llama_eagle.serving.requests.json_body import read_json_body, without_nulls
from llama_eagle.serving.requests.media import NO_URLS, fetches_urls
from llama_eagle.serving.requests.parameters import require_tokens, require_unused

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from llama_eagle.serving.http import Front

Body = dict[str, Any]
OPENAI = "/v1/embeddings"
VECTORS = (OPENAI, "/embeddings", "/embedding")
SCORES = ("/v1/rerank", "/v1/reranking", "/rerank", "/reranking")
TEXTS = ("content", "documents", "input", "query", "texts")  # may be token ids
UNIT = 1e-3  # a vector whose length differs less from 1 is normalized
_BEYOND_BATCH = re.compile(r"(.*) is too large to process.*\D(\d+)\)", re.DOTALL)


def routes(prefix: str = "") -> list[BaseRoute]:
    """Return the routes. prefix: that of all paths."""
    endpoints = {**dict.fromkeys(VECTORS, embed), **dict.fromkeys(SCORES, rank)}
    return [Route(f"{prefix}{path}", each, methods=["POST"]) for path, each in endpoints.items()]


async def embed(request: Request) -> Response:
    return Response(await vectors(*await _read(request)), media_type=JSON)


async def vectors(front: Front, path: str, body: Body) -> bytes:
    """Return the child's answer with vectors. Raises `Refusal`."""
    require(
        not front.settings.has_scores,  # llama.cpp would read as many values as a vector has, behind the scores
        "this model gives scores and no embeddings: use /v1/rerank, or start the server with --embeddings "
        "-- --pooling mean, cls or last",
    )
    form, n = body.get("encoding_format", "float"), body.get("dimensions")
    require(isinstance(form, str), "'encoding_format' is no text")
    if path != OPENAI or "input" not in body:
        require_unused(body, ["dimensions"])
        require(form != "base64", "this API has no base64: leave out 'encoding_format', or use /v1/embeddings")
        n = None
    if n is None:
        return await _ask(front, path, body)
    require(isinstance(n, int) and not isinstance(n, bool), "'dimensions' is no whole number")
    import numpy as np  # a third of the time that the other imports of a server take

    answer = json.loads(await _ask(front, path, {**body, "encoding_format": "float"}))
    for entry in answer["data"]:
        kept = shortened(np.array(entry["embedding"], np.float64), n)
        in_base64 = base64.b64encode(kept.astype("<f4").tobytes()).decode()
        entry["embedding"] = in_base64 if form == "base64" else kept.tolist()
    return json.dumps(answer).encode()


def shortened(vector: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """Return the first n values, with length 1 if the vector has it. Raises `Refusal`."""
    import numpy as np

    require(0 < n <= len(vector), f"'dimensions' is a whole number from 1 to {len(vector)}, this model's size")
    kept, length = vector[:n], np.linalg.norm(vector[:n])
    is_normalized = abs(np.linalg.norm(vector) - 1) < UNIT and length > 0
    return kept / length if is_normalized else kept


async def rank(request: Request) -> Response:
    """Answer a request for scores. Documents may be objects with a text."""
    front, path, body = await _read(request)
    require_unused(body, ["rank_fields"])
    n = body.get("top_n", 1)
    require(isinstance(n, int) and not isinstance(n, bool) and n > 0, "'top_n' is a whole number, at least 1")
    key = "texts" if "texts" in body else "documents"
    if isinstance(given := body.get(key), list):
        body[key] = [each.get("text") if isinstance(each, dict) else each for each in given]
        require(
            body.get("query") != "" or "" not in body[key],
            "'query' and a document are both empty: leave out the document",
        )
    data = await _ask(front, path, body)
    if key == "texts" or not body.get("return_documents"):
        return Response(data, media_type=JSON)
    answer = json.loads(data)
    for result in answer["results"]:
        result["document"] = {"text": body[key][result["index"]]}
    return JSONAnswer(answer)


async def _read(request: Request) -> tuple[Front, str, Body]:
    """Return the front, the path without its prefix, and the body. Raises `Refusal`."""
    front: Front = request.app
    body = without_nulls(read_json_body(await request.body()))
    n_vocab = (await served(front)).n_vocab
    for key in TEXTS:
        require_tokens(body.get(key), n_vocab)
    require_whole("embd_normalize", body.get("embd_normalize"), 32)
    require(fetches_urls() or not _has_address(body), NO_URLS)
    return front, request.scope["path"].removeprefix(front.settings.prefix), body


def _has_address(value: Any) -> bool:
    """Return True for media that the child would fetch: clients could use it to reach any address."""
    if isinstance(value, dict):
        sources = (value.get(key) for key in ("url", "data"))
        is_one = any(isinstance(each, str) and each.startswith("http") for each in sources)
        return is_one or any(map(_has_address, value.values()))
    return isinstance(value, list) and any(map(_has_address, value))


async def _ask(front: Front, path: str, body: Body) -> bytes:
    """Return the child's answer. Raises `Refusal`; a text beyond the batch is the request's fault, and not repeated."""
    try:
        answer = await slots.ask(front, "POST", path, json.dumps(body).encode())
    except Refusal as refusal:
        found = _BEYOND_BATCH.fullmatch(str(refusal))
        if refusal.status != 500 or found is None:
            raise
        remedy = f"shorten it, or start the server with a larger --ubatch-size than {found[2]}"
        raise Refusal(400, f"{found[1]} is too long: {remedy}", error={"type": TOO_LONG}) from None
    try:
        return await answer.read()
    finally:
        answer.close()
