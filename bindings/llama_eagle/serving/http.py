"""The front's application: who may use it, how large a request may be, and where a request goes.

Routes of our own are answered here; every other request goes to the child as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping, Sequence

from starlette.routing import BaseRoute, Match, Router
from starlette.types import Message, Receive, Scope, Send

from llama_eagle import console
from llama_eagle.serving.access import FOREIGN_PAGE, is_local_name
from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.child import Child, NotReady
from llama_eagle.serving.settings import FrontSettings
from llama_eagle.serving.streams import Answer

IDLE_S = 5  # seconds that a connection stays open between two requests
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

    An endpoint finds the front in `request.app`, the child in `request.app.child`, and reads its body by
    `read_body(request.receive, ...)`, which keeps the limit. It may raise `Refusal`.
    """

    def __init__(self, child: Child, settings: FrontSettings, routes: Sequence[BaseRoute] = ()) -> None:
        self.child = child
        self.settings = settings
        self._router = Router(routes, redirect_slashes=False, default=self._forward)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        scope["app"] = self
        headers: Mapping[bytes, bytes] = dict(scope["headers"])
        try:
            self._check(scope, headers)
            await self._router(scope, receive, send)
        except Refusal as refusal:
            await _refuse(scope, headers, refusal, send)
        except Gone:
            return
        except ConnectionError:
            raise  # the child's end: the connection closes, so that nobody takes the answer for whole
        except Exception as error:
            console.warn(f"{scope['method']} {scope['path'][:100]}: {type(error).__name__}: {error}.")
            raise

    def _check(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        """Raise `Refusal` for a request that is not read. The child refuses those without a key itself: it knows which
        of its paths are public."""
        if len(scope["headers"]) > MAX_HEADERS or any(len(a) + len(b) > MAX_HEADER for a, b in scope["headers"]):
            raise Refusal(400)
        if self.settings.access.is_foreign(headers):
            raise Refusal(403, FOREIGN_PAGE)
        is_ours = any(route.matches(scope)[0] is not Match.NONE for route in self._router.routes)
        if is_ours and not self.settings.access.has_key(headers):
            raise Refusal(401, "Invalid API Key")
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise Refusal(415)
        if not _RANGE.match(headers.get(b"range", b"bytes=0-")):
            raise Refusal(416)
        kind = headers.get(b"content-type", b"")
        if kind.startswith(b"multipart/form-data") and b"boundary=" not in kind:
            raise Refusal(400)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the request to the child, and its answer to the client, as it arrives."""
        headers = dict(scope["headers"])
        body = await read_body(receive, headers, self.settings.max_body)
        kept = [(name, value) for name, value in scope["headers"] if name not in NOT_FOR_THE_CHILD]
        query = scope["query_string"]
        target = scope["raw_path"] + (b"?" + query if query else b"")
        has_key = self.settings.access.has_key(headers)
        requested = asyncio.ensure_future(self.child.request(scope["method"], target, kept, body, with_key=has_key))
        watch = asyncio.ensure_future(_wait_until_gone(receive, requested))
        try:
            answer = await requested
            await _pass_on(scope, answer, send)
        except NotReady:
            raise Refusal(503, "Loading model") from None
        except asyncio.CancelledError:
            if watch.done():
                raise Gone from None
            raise
        finally:
            watch.cancel()
            _close(requested)


async def _wait_until_gone(receive: Receive, requested: asyncio.Future[Answer]) -> None:
    """Wait until the client has closed its connection; then close the child's, which stops."""
    while (await receive())["type"] != "http.disconnect":
        pass
    if not requested.cancel():
        _close(requested)


def _close(requested: asyncio.Future[Answer]) -> None:
    if requested.done() and not requested.cancelled() and requested.exception() is None:
        requested.result().close()


async def _pass_on(scope: Scope, answer: Answer, send: Send) -> None:
    headers = [pair for pair in answer.headers if pair[0] not in OF_A_CONNECTION]
    if scope["http_version"] == "1.1":
        headers.append((b"keep-alive", b"timeout=%d" % IDLE_S))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    while part := await answer.part():
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send(_END)


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


async def _refuse(scope: Scope, headers: Mapping[bytes, bytes], refusal: Refusal, send: Send) -> None:
    body = refusal.body(scope["path"], headers)
    given = [(b"content-type", JSON), (b"content-length", str(len(body)).encode())]
    origin = headers.get(b"origin", b"")
    if origin and is_local_name(origin.decode("latin-1")):
        given.append((b"access-control-allow-origin", origin))
    with contextlib.suppress(RuntimeError):  # the answer has begun
        await send({"type": "http.response.start", "status": refusal.status, "headers": given})
        await send({"type": "http.response.body", "body": body})
