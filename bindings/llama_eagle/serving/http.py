"""The front's application: who may use it, how large a request may be, and where a request goes.

Routes of our own are answered here; every other request goes to the child as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from starlette.routing import BaseRoute, Match, Router
from starlette.types import Message, Receive, Scope, Send

from llama_eagle.serving.access import FOREIGN_PAGE
from llama_eagle.serving.api_errors import NO_PATH, Refusal, as_refusal, child_refusal, no_path
from llama_eagle.serving.llama_server.child import Child
from llama_eagle.serving.llama_server.served import Served
from llama_eagle.serving.llama_server.streams import Answer
from llama_eagle.serving.model_files import ModelFiles
from llama_eagle.serving.resume import Sessions
from llama_eagle.serving.saved.saved_prompts import SavedPrompts
from llama_eagle.serving.settings import FrontSettings

Result = TypeVar("Result")
IDLE_S = 60  # seconds that a connection stays open between two requests: clients may be busy for long
HEALTH = ("/health", "/v1/health")
MAX_HEADER = 8192  # bytes
MAX_HEADERS = 100
JSON = b"application/json; charset=utf-8"
OF_A_CONNECTION = {  # headers that are about one connection, not about the request or the answer
    b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade", b"te",
}  # fmt: skip
NOT_FOR_THE_CHILD = OF_A_CONNECTION | {b"authorization", b"x-api-key", b"content-length", b"expect"}
_RANGE = re.compile(rb"\s*bytes=(\d+-\d*|-\d+)(\s*,\s*(\d+-\d*|-\d+))*\s*$")
_END: Message = {"type": "http.response.body", "body": b""}


class Gone(Exception):
    """The client has closed its connection."""


class Front:
    """ASGI application over a child. routes: those that are answered here, by Starlette's endpoints.

    files: of the model. Requests get 503 while they differ from those that were loaded. An endpoint finds the child in
    `request.app.child`, may raise `Refusal`, and is cancelled when its client goes.
    """

    def __init__(
        self, child: Child, settings: FrontSettings, routes: Sequence[BaseRoute] = (), files: ModelFiles | None = None
    ) -> None:
        self.child = child
        self.settings = settings
        self.model: Served | None = None  # read by `served`
        self.sessions = Sessions()
        self.saved: SavedPrompts | None = None  # prompts of earlier runs
        self._files = files or ModelFiles()
        self._router = Router(routes, redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        scope["app"] = self
        headers: Mapping[bytes, bytes] = dict(scope["headers"])
        has_begun = False

        async def send_noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            is_ours, with_headers = self._check(scope, headers), self._with_headers(scope, headers, send_noted)
            if scope["method"] == "OPTIONS":
                await _send_head(200, [*self.settings.access.preflight(), (b"content-length", b"0")], with_headers)
                await with_headers(_END)
            elif is_ours:
                await self._answer(scope, receive, with_headers)
            else:
                await self._forward(scope, receive, send_noted)
        except Gone:
            return
        except Exception as error:
            refusal = as_refusal(error)
            if has_begun:
                raise  # the connection closes, so that nobody takes the answer for whole
            await self._refuse(scope, headers, refusal, send)

    def _check(self, scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
        """Return True if the path is ours. Raises `Refusal` for a request that is not read.

        The child refuses those without a key itself, because it knows which of its paths are public.
        """
        if len(scope["headers"]) > MAX_HEADERS or any(len(a) + len(b) > MAX_HEADER for a, b in scope["headers"]):
            raise Refusal(400)
        if self.settings.access.is_foreign(headers):
            raise Refusal(403, FOREIGN_PAGE)
        matches = any(route.matches(scope)[0] is Match.FULL for route in self._router.routes)
        is_ours = matches and scope["method"] != "OPTIONS"
        has_key = self.settings.access.has_key(headers)
        is_public = scope["path"].removeprefix(self.settings.prefix) in HEALTH
        if is_ours and not has_key and not is_public:
            raise Refusal(401, "Invalid API Key")
        needs_model = is_public or scope["method"] == "POST" or self._files.are_read_again
        if needs_model and (is_public or has_key) and (reason := self._files.change()):
            raise Refusal(503, reason)
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise Refusal(415)
        if not _RANGE.match(headers.get(b"range", b"bytes=0-")):
            raise Refusal(416)
        kind = headers.get(b"content-type", b"")
        if kind.startswith(b"multipart/form-data") and b"boundary=" not in kind:
            raise Refusal(400)
        return is_ours

    def _with_headers(self, scope: Scope, headers: Mapping[bytes, bytes], send: Send) -> Send:
        """Return a `send` for our own answers, which pages of allowed origins may read."""
        more = [*self.settings.access.allowed_origin(headers), *_kept_open(scope)]

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        return send_with_headers

    async def _refuse(self, scope: Scope, headers: Mapping[bytes, bytes], refusal: Refusal, send: Send) -> None:
        body = refusal.body(scope["path"].removeprefix(self.settings.prefix), headers, self.settings.n_trained)
        given = [(b"content-type", JSON), (b"content-length", str(len(body)).encode())]
        send = self._with_headers(scope, headers, send)
        await _send_head(refusal.status, given, send)
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer on a route of ours."""
        body = await read_body(receive, dict(scope["headers"]), self.settings.max_body)
        messages: Iterator[Message] = iter([{"type": "http.request", "body": body}])

        async def replay() -> Message:
            return next(messages, None) or await asyncio.get_running_loop().create_future()

        answered = asyncio.ensure_future(self._router(scope, replay, send))
        with _stopped_when_gone(receive, answered.cancel) as watch:
            await _unless_gone(answered, watch)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the request to the child, and its answer to the client, as it arrives."""
        body = await read_body(receive, dict(scope["headers"]), self.settings.max_body)
        passed_on = asyncio.ensure_future(self._request_child(scope, body, send))
        with _stopped_when_gone(receive, passed_on.cancel) as watch:
            await _unless_gone(passed_on, watch)

    async def _request_child(self, scope: Scope, body: bytes, send: Send) -> None:
        kept = [(name, value) for name, value in scope["headers"] if name not in NOT_FOR_THE_CHILD]
        query = scope["query_string"]
        target = scope["raw_path"] + (b"?" + query if query else b"")
        has_key = self.settings.access.has_key(dict(scope["headers"]))
        async with self.child_for(scope, body) as child:
            answer = await child.request(scope["method"], target, kept, body, with_key=has_key)
            try:
                await _pass_on(scope, answer, send)
            finally:
                answer.close()

    @contextlib.asynccontextmanager
    async def child_for(self, _scope: Scope, _body: bytes) -> AsyncIterator[Child]:
        """Yield the child that answers a request."""
        yield self.child


@contextlib.contextmanager
def _stopped_when_gone(receive: Receive, stop: Callable[[], object]) -> Iterator[asyncio.Future[None]]:
    """Call `stop` when the client closes its connection within the block; yield the task that waits for it."""

    async def wait() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        stop()

    watch = asyncio.ensure_future(wait())
    try:
        yield watch
    finally:
        watch.cancel()


async def _unless_gone(awaited: asyncio.Future[Result], watch: asyncio.Future[None]) -> Result:
    """Return the result. Raises `Gone` if it was cancelled because the client has gone."""
    try:
        return await awaited
    except asyncio.CancelledError:
        if watch.done():
            raise Gone from None
        raise


async def _send_head(status: int, headers: list[tuple[bytes, bytes]], send: Send) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


def _kept_open(scope: Scope) -> list[tuple[bytes, bytes]]:
    """Return the header that announces how long a connection stays open."""
    return [(b"keep-alive", b"timeout=%d" % IDLE_S)] if scope["http_version"] == "1.1" else []


async def _pass_on(scope: Scope, answer: Answer, send: Send) -> None:
    kind = answer.header(b"content-type")
    if answer.status >= 400 and (kind.startswith(b"application/json") or answer.header(b"content-length") == b"0"):
        raise await _refused(scope, answer)
    headers = [*(pair for pair in answer.headers if pair[0] not in OF_A_CONNECTION), *_kept_open(scope)]
    await _send_head(answer.status, headers, send)
    while part := await answer.part():
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send(_END)


async def _refused(scope: Scope, answer: Answer) -> Refusal:
    """Return the error of the child."""
    refusal = child_refusal(answer.status, await answer.read())
    has_no_path = answer.status == 404 and refusal.error.get("message") == NO_PATH
    return no_path(scope["method"], scope["path"]) if has_no_path else refusal


async def read_body(receive: Receive, headers: Mapping[bytes, bytes], max_body: int) -> bytes:
    """Return the body of a request. Raises `Refusal` for one that is too long, and `Gone`."""
    too_long = Refusal(
        413,
        f"the body has more than {max_body >> 20} MiB: send less, or start this server with a larger "
        "LLAMA_EAGLE_MAX_BODY_MIB",
    )
    length = headers.get(b"content-length", b"0")
    if len(length) > 18 or int(length) > max_body:
        raise too_long
    parts, n, has_more = [], 0, True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        part = message.get("body", b"")
        has_more = message.get("more_body", False)
        parts.append(part)
        n += len(part)
        if n > max_body:
            raise too_long
    return b"".join(parts)
