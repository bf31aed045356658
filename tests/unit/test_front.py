"""The front without a model: its access control, its settings, and answers of a child that the test plays."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from llama_eagle.serving.access import Access, is_local_name
from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.apis import models
from llama_eagle.serving.http import Front
from llama_eagle.serving.llama_server.child import Child, NotReady, new_child
from llama_eagle.serving.llama_server.streams import Chunks
from llama_eagle.serving.settings import FrontSettings, for_arguments, max_body, without_keys
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

EVENTS = [b'data: {"n": %d}\n\n' % n for n in range(20)]
OPEN = FrontSettings("127.0.0.1", 0, Access())


def chunked(parts: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in [*parts, b""])


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_chunks_may_be_cut_anywhere(size: int) -> None:
    data, chunks = chunked(EVENTS), Chunks()
    taken = b"".join(chunks.take(data[at : at + size]) for at in range(0, len(data), size))
    assert taken == b"".join(EVENTS) and chunks.has_ended


def test_what_is_no_chunk_is_refused() -> None:
    with pytest.raises(ConnectionError, match="no chunk"):
        Chunks().take(b"HTTP\r\n")


@pytest.mark.parametrize(
    ("name", "is_local"),
    [
        ("localhost", True), ("localhost:8000", True), ("http://127.0.0.2:3", True), ("[::1]:8000", True),
        ("a.localhost", True), (".localhost", False), ("127.evil.example", False), ("localhost.evil.example", False),
        ("10.0.0.1", False), ("[::2]", False), ("", False),
    ],
)  # fmt: skip
def test_names_of_this_machine(name: str, is_local: bool) -> None:
    assert is_local_name(name) == is_local


def test_keys_come_from_arguments_and_their_files(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# comment\nc\n\nd,e\n")
    extra = ("--metrics", "--api-key", 'a,"b,2",', "--api_key-file", str(file), "--lora", "x")
    found = for_arguments(OPEN, extra)
    assert found.access.keys == ("a", "b,2", "c", "d,e")
    assert [*without_keys(extra)] == ["--metrics", "--lora", "x"]
    assert not for_arguments(OPEN, ("--no-cors-credentials",)).access.has_credentials
    assert all(found.access.has_key({b"x-api-key": key.encode()}) for key in found.access.keys)
    assert not any(found.access.has_key({b"x-api-key": key}) for key in (b"", b"a,b", b"A", b"b"))


def test_the_largest_body() -> None:
    assert [max_body({"LLAMA_EAGLE_MAX_BODY_MIB": text}) >> 20 for text in ("", "64", "x", "0")] == [32, 64, 32, 32]


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def asked(
    answer: Handler, method: str = "GET", path: str = "/x", body: list[bytes] | None = None, *,
    settings: FrontSettings = OPEN, headers: list[tuple[bytes, bytes]] | None = None, gone: asyncio.Event | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return the messages of the front to a client. answer: the child. gone: set when the client goes."""
    sent: list[dict[str, Any]] = []
    parts: Iterator[bytes] = iter(body or [b""])
    left = len(body or [b""])

    async def receive() -> dict[str, Any]:
        nonlocal left
        if left:
            left -= 1
            return {"type": "http.request", "body": next(parts), "more_body": left > 0}
        await (gone or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    async def double(request: Request) -> PlainTextResponse:
        return PlainTextResponse("2")

    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
        "http_version": "1.1", "headers": headers or [],
    }  # fmt: skip

    async def wait(request: Request) -> PlainTextResponse:
        try:
            return PlainTextResponse(await asyncio.sleep(100, "late"))
        finally:
            sent.append({"type": "ended"})

    async def fail(request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(1 // 0))

    async def recurse(request: Request) -> PlainTextResponse:
        return await recurse(request)

    with new_child() as child:
        async with await asyncio.start_unix_server(answer, child.path):
            own = {"/double": double, "/wait": wait, "/recurse": recurse, "/fail": fail}
            routes = [*(Route(path, each) for path, each in own.items()), *models.routes()]
            await asyncio.wait_for(Front(child, settings, routes)(scope, receive, send), 20)
    return sent


def replying(data: bytes) -> Handler:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(data)
        writer.close()

    return reply


def body_of(sent: list[dict[str, Any]]) -> bytes:
    return b"".join(message.get("body", b"") for message in sent)


STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\nX-A: b\r\n\r\n"


def test_events_that_wait_share_a_write() -> None:
    sent = asyncio.run(asked(replying(b"HTTP/1.1 100 Continue\r\n\r\n" + STREAM + chunked(EVENTS))))
    assert body_of(sent) == b"".join(EVENTS)
    assert sent[0]["status"] == 200 and (b"x-a", b"b") in sent[0]["headers"]
    assert not {b"transfer-encoding", b"connection"} & {name for name, _ in sent[0]["headers"]}
    assert len(sent) < 5


def test_the_child_loses_its_connection_when_the_client_goes() -> None:
    async def check() -> None:
        gone, stopped = asyncio.Event(), asyncio.Event()

        async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(STREAM + chunked(EVENTS)[:-5])  # without its end
            await writer.drain()
            gone.set()
            assert await reader.read() == b""
            stopped.set()

        with contextlib.suppress(ConnectionError):
            await asked(reply, gone=gone)
        await asyncio.wait_for(stopped.wait(), 20)

    asyncio.run(check())


def test_a_child_that_ends_within_an_answer_leaves_it_unfinished() -> None:
    with pytest.raises(ConnectionError, match="ended within"):
        asyncio.run(asked(replying(STREAM + chunked(EVENTS)[:-5])))


@pytest.mark.parametrize("path", ["/x", "/v1/messages"])
@pytest.mark.parametrize("settings", [OPEN, replace(OPEN, access=Access(("key",)))])
def test_only_the_front_sends_the_childs_key(path: str, settings: FrontSettings) -> None:
    """It sends it for clients that have theirs, whatever else they send."""
    heads: list[bytes] = []

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    for given in ([], [(b"authorization", b"Bearer wrong"), (b"x-api-key", b"key")]):
        asyncio.run(asked(reply, path=path, headers=given, settings=settings))
    has_key = [b"Authorization: Bearer " in head for head in heads]
    assert has_key == [not settings.access.keys, True]
    assert not any(b"wrong" in head or b"x-api-key" in head.lower() for head in heads)


def error_of(sent: list[dict[str, Any]]) -> tuple[int, dict[str, Any]]:
    return sent[0]["status"], json.loads(body_of(sent))["error"]


def test_bodies_beyond_the_limit_are_refused_before_and_while_they_are_read() -> None:
    small = replace(OPEN, max_body=8)
    for given in ([(b"content-length", b"9")], []):
        for path in ("/x", "/v1/messages"):
            sent = asyncio.run(asked(replying(b""), "POST", path, [b"123", b"456789"], settings=small, headers=given))
            status, error = error_of(sent)
            kind = "request_too_large" if path == "/v1/messages" else "invalid_request_error"
            assert (status, error["type"]) == (413, kind)


def test_routes_of_the_front_want_a_key_too() -> None:
    closed = replace(OPEN, access=Access(("key",)))
    for path in ("/double", "/v1/models"):
        assert error_of(asyncio.run(asked(replying(b""), path=path, settings=closed)))[0] == 401
    headers = [(b"x-api-key", b"key"), (b"origin", b"http://localhost:3")]
    sent = asyncio.run(asked(replying(b""), path="/double", settings=closed, headers=headers))
    assert (body_of(sent), sent[0]["status"]) == (b"2", 200)
    assert (b"access-control-allow-origin", b"http://localhost:3") in sent[0]["headers"]


MISSING = b'{"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}'


def errors(status: bytes, data: bytes) -> Handler:
    head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return replying(head % (status, len(data)) + data)


@pytest.mark.parametrize(
    ("method", "path", "reason"),
    [
        ("POST", "/double", "has no POST /double: OpenAI's APIs are below /v1"),
        ("POST", "/api/blobs/x", "it is not Ollama"),
        ("GET", "/v1/responses/resp_1", "it keeps no responses"),
        ("POST", "/v1/responses/compact", "another name than OpenAI"),
        ("POST", "/\xff\0", "has no POST /??: "),
    ],
)
def test_paths_that_nobody_has_are_named(method: str, path: str, reason: str) -> None:
    """Also those that have other methods alone."""
    sent = asyncio.run(asked(errors(b"404 Not Found", MISSING), method, path))
    error = json.loads(body_of(sent))["error"]
    assert sent[0]["status"] == 404 and reason in (error if path.startswith("/api") else error["message"])


@pytest.mark.parametrize(("n_trained", "remedy"), [(0, "use a larger -c"), (8, "trained with 8"), (9, "larger -c")])
def test_a_prompt_that_is_too_long_in_the_words_of_clients(n_trained: int, remedy: str) -> None:
    given = {"type": "exceed_context_size_error", "code": 400, "message": "x", "n_ctx": 8, "n_prompt_tokens": 9}
    reply = errors(b"400 Bad Request", json.dumps({"error": given}).encode())
    settings = replace(OPEN, n_trained=n_trained)
    for path, code in (("/v1/x", "context_length_exceeded"), ("/completion", 400)):
        status, error = error_of(asyncio.run(asked(reply, path=path, settings=settings)))
        assert (status, error["code"], error["n_ctx"], error["n_prompt_tokens"]) == (400, code, 8, 9)
        assert "(9 tokens) exceeds the available context size (8 tokens); " in error["message"]
        assert remedy in error["message"]
    status, error = error_of(asyncio.run(asked(reply, path="/v1/messages", settings=settings)))
    assert error["type"] == "invalid_request_error" and remedy in error["message"]
    assert error["message"].startswith("prompt is too long: 9 tokens > 8 maximum; ")


def test_messages_of_llama_cpp_lose_what_clients_cannot_use() -> None:
    assert str(Refusal(400, "[json.exception.type_error.302] type must be a string")) == "type must be a string"
    place = "a\n------------\nWhile executing X at line 1\n ^\nError: "
    assert str(Refusal(400, f"{place}Jinja Exception: No query")) == "the chat template refuses this request: No query"
    assert str(Refusal(400, f"{place}Unknown filter")) == "the chat template failed: Unknown filter"


@pytest.mark.parametrize("path", ["/x", "/v1/models"])
def test_a_child_that_ends_before_its_answer_is_503(path: str) -> None:
    status, error = error_of(asyncio.run(asked(replying(b""), path=path)))
    assert status == 503 and "llama-server has ended" in error["message"]


def test_a_fault_of_an_endpoint_is_500_and_logged(capsys: pytest.CaptureFixture[str]) -> None:
    status, error = error_of(asyncio.run(asked(replying(b""), path="/fail")))
    assert (status, error["type"]) == (500, "server_error")
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_pages_of_all_origins_with_credentials_and_without() -> None:
    origin = (b"origin", b"https://a.example")
    for access, expected in (
        (Access(("k",), origins="*"), b"https://a.example"),
        (Access(("k",), origins="*", has_credentials=False), b"*"),
        (Access(("k",), origins="https://b.example"), b"https://b.example"),
    ):
        headers = [origin, (b"x-api-key", b"k")]
        sent = asyncio.run(asked(replying(b""), path="/double", settings=replace(OPEN, access=access), headers=headers))
        assert (b"access-control-allow-origin", expected) in sent[0]["headers"]


def test_an_endpoint_ends_when_its_client_goes() -> None:
    async def check() -> list[dict[str, Any]]:
        gone = asyncio.Event()
        asyncio.get_running_loop().call_later(0.05, gone.set)
        return await asked(replying(b""), path="/wait", gone=gone)

    assert asyncio.run(check()) == [{"type": "ended"}]


def test_a_body_that_is_too_deep_for_an_endpoint_is_the_clients_fault() -> None:
    status, error = error_of(asyncio.run(asked(replying(b""), path="/recurse")))
    assert status == 400 and "nested too deeply" in error["message"]


def test_errors_without_a_body_get_a_reason() -> None:
    reply = replying(b"HTTP/1.1 414 URI Too Long\r\nContent-Length: 0\r\n\r\n")
    status, error = error_of(asyncio.run(asked(reply)))
    assert status == 414 and "too long" in error["message"]


def test_a_child_that_does_not_listen_yet_is_503(tmp_path: Path) -> None:
    async def check() -> None:
        with pytest.raises(NotReady):
            await Child(str(tmp_path / "none.sock")).request("GET", b"/health")
        with pytest.raises(NotReady):
            await Child().request("GET", b"/health")

    asyncio.run(check())


def test_the_folder_of_the_childs_socket_is_the_users_alone() -> None:
    with new_child() as child:
        folder = Path(child.path).parent
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()


def test_models_have_the_fields_of_both_apis() -> None:
    data = json.dumps({"object": "list", "data": [{"id": "a/b", "created": 86400, "aliases": ["c"]}]}).encode()
    reply = replying(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data))
    found = json.loads(body_of(asyncio.run(asked(reply, path="/v1/models"))))
    assert (found["first_id"], found["has_more"], found["data"][0]["created_at"]) == (
        "a/b",
        False,
        "1970-01-02T00:00:00Z",
    )
    for name in ("a/b", "c"):
        assert json.loads(body_of(asyncio.run(asked(reply, path=f"/v1/models/{name}")))) == found["data"][0]
    status, error = error_of(asyncio.run(asked(reply, path="/v1/models/x")))
    assert (status, error["code"]) == (404, "model_not_found") and '"a/b"' in error["message"]


def test_a_refusal_has_the_form_of_its_api() -> None:
    for headers, is_messages in (({}, False), ({b"anthropic-version": b"2023-06-01"}, True)):
        found = json.loads(Refusal(503, "Loading model").body("/v1/models", headers))
        assert (found.get("type") == "error") == is_messages
        assert found["error"]["type"] == ("overloaded_error" if is_messages else "unavailable_error")
