"""Connections of other clients than most: HTTP/1.0, requests in one write, bodies in chunks, a side that is closed."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest
from fixtures.serving import TIMEOUT, Served, serve
from fixtures.tiny_gguf import write_target

pytestmark = pytest.mark.native

INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
COMPLETION = {"prompt": "abc", "n_predict": 9, "temperature": 0}
CHAT = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 9, "temperature": 0}
REQUESTS: dict[str, dict[str, Any]] = {
    "/completion": COMPLETION,
    "/v1/chat/completions": CHAT,
    "/v1/messages": CHAT,
    "/v1/responses": {"input": "abc", "max_output_tokens": 9, "temperature": 0},
    "/v1/embeddings": {"input": ["abc", "def"]},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = write_target(tmp_path_factory.mktemp("model") / "target.gguf")
    given = ("-m", path, "-d", "none", "-c", 4096, "-t", 1, "--parallel", 2)
    with serve(*given, "--", "--embeddings", "--pooling", "mean") as running:
        yield running


def written(path: str, body: dict[str, Any], *headers: str, version: str = "1.1") -> bytes:
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/{version}", "Host: localhost", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode() + data


def connected(server: Served) -> socket.socket:
    where = urllib.parse.urlparse(server.address)
    return socket.create_connection((where.hostname, where.port), timeout=TIMEOUT)


def rest(client: socket.socket) -> bytes:
    with client.makefile("rb") as reading:
        return reading.read()


def takes_interim(client: socket.socket) -> bool:
    received = b""
    while len(received) < len(INTERIM):
        received += client.recv(len(INTERIM) - len(received))
    return received == INTERIM


def exchanged(server: Served, sent: bytes, closes: bool = False) -> bytes:
    """Return everything that the server sends. closes: the client ends its side after its data."""
    with connected(server) as client:
        client.sendall(sent)
        if closes:
            client.shutdown(socket.SHUT_WR)
        return rest(client)


def read(received: bytes) -> tuple[bytes, bytes]:
    """Return the head and the body of a response, without the interim ones before it."""
    while received.startswith(INTERIM):
        received = received[len(INTERIM) :]
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 ")
    return head, body


def content(body: bytes) -> Any:
    """Return what a body says, without what differs between two answers."""
    answer = json.loads(body)
    return [answer[key] for key in ("content", "choices", "data", "status", "stop_reason") if key in answer]


@pytest.mark.parametrize("path", REQUESTS)
def test_a_client_that_closes_its_side_gets_the_whole_answer(server: Served, path: str) -> None:
    request = written(path, REQUESTS[path], "Connection: close")
    body = read(exchanged(server, request, closes=True))[1]
    assert content(body) == content(read(exchanged(server, request))[1])


def events(body: bytes) -> list[str]:
    """Return the texts of a stream of completions."""
    lines = [line.removeprefix("data: ") for line in body.decode().splitlines() if line.startswith("data: ")]
    return [json.loads(line)["content"] for line in lines]


def test_a_client_that_closes_its_side_gets_the_whole_stream(server: Served) -> None:
    request = written("/completion", COMPLETION | {"stream": True}, "Connection: close")
    closed, other = (read(exchanged(server, request, closes))[1] for closes in (True, False))
    assert closed.endswith(b"\r\n0\r\n\r\n") and events(closed) == events(other) != []


def test_a_request_stops_if_its_client_goes_after_closing_its_side(server: Served) -> None:
    """A tunnel passes the end of the client's data on before it knows that the client has gone."""
    with connected(server) as client:
        client.sendall(written("/completion", {"prompt": ["abc"] * 2000, "n_predict": 1500}))
        client.shutdown(socket.SHUT_WR)
        assert takes_interim(client)
        wait_for(server, is_busy=True)
    wait_for(server, is_busy=False)


def wait_for(server: Served, is_busy: bool) -> None:
    end = time.monotonic() + TIMEOUT
    while (server.metric("requests_processing") + server.metric("requests_deferred") > 0) != is_busy:
        assert time.monotonic() < end


def test_streams_of_http_1_0_have_no_chunks(server: Served) -> None:
    request = COMPLETION | {"stream": True}
    head, body = read(exchanged(server, written("/completion", request, version="1.0")))
    assert b"transfer-encoding" not in head.lower() and b"connection: close" in head.lower()
    assert body.startswith(b"data: ") and body.endswith(b"\n\n")
    chunked = read(exchanged(server, written("/completion", request, "Connection: close")))[1]
    assert events(body) == events(chunked) != []


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_an_answer_that_is_ready_is_sent_alone(server: Served, version: str) -> None:
    """Nobody needs to know then whether a client that has closed its side is still there."""
    received = exchanged(server, written("/completion", COMPLETION, "Connection: close", version=version), closes=True)
    assert INTERIM not in received and json.loads(read(received)[1])["tokens_predicted"] == 9


@pytest.mark.parametrize("path", ["/completion", "/v1/messages"])
def test_http_1_0_gets_a_reason_if_it_closes_its_side(server: Served, path: str) -> None:
    """It knows no interim responses, so it may as well have gone while its request waits for a slot."""
    with connected(server) as other:
        other.sendall(written("/completion", {"prompt": ["abc"] * 2000, "n_predict": 1500}))
        wait_for(server, is_busy=True)
        head, body = read(exchanged(server, written(path, REQUESTS[path], version="1.0"), closes=True))
    wait_for(server, is_busy=False)
    assert head.startswith(b"HTTP/1.1 400 ") and f"Content-Length: {len(body)}".encode() in head
    assert "must not close its side" in json.loads(body)["error"]["message"]


def test_a_client_that_speaks_tls_learns_it_at_once(server: Served) -> None:
    context = ssl.create_default_context()
    with connected(server) as client, pytest.raises(ssl.SSLError, match=r"(?i)wrong.version|http.request|packet"):
        context.wrap_socket(client, server_hostname="localhost")


def test_http_1_0_keeps_a_connection_if_asked(server: Served) -> None:
    kept = written("/completion", COMPLETION, "Connection: keep-alive", version="1.0")
    with connected(server) as client:
        for request in (kept, kept, written("/completion", COMPLETION, version="1.0")):
            client.sendall(request)
            response = http_response(client)
            assert json.loads(response.read())["tokens_predicted"] == 9
            assert response.headers["Connection"] == ("keep-alive" if request == kept else "close")
        assert client.recv(1) == b""


def http_response(client: socket.socket) -> http.client.HTTPResponse:
    response = http.client.HTTPResponse(client)
    response.begin()
    return response


def test_requests_in_one_write_are_answered_in_turn(server: Served) -> None:
    lengths = (3, 1, 2)
    requests = [COMPLETION | {"n_predict": n} for n in lengths]
    last = written("/completion", COMPLETION | {"stream": True}, "Connection: close")
    with connected(server) as client:
        client.sendall(b"".join(written("/completion", request) for request in requests) + last)
        answers = rest(client)
    bodies = [part.partition(b"\r\n\r\n")[2] for part in answers.split(b"HTTP/1.1 200 OK\r\n")[1:]]
    assert [json.loads(body)["tokens_predicted"] for body in bodies[:3]] == list(lengths)
    assert len(bodies) == 4 and bodies[3].endswith(b"\r\n0\r\n\r\n")


def test_line_breaks_behind_a_body_are_skipped(server: Served) -> None:
    """Programs send them that write the body as a line (RFC 9112, section 2.2)."""
    request = written("/completion", COMPLETION)
    with connected(server) as client:
        for sent in (request + b"\r\n", request):
            client.sendall(sent)
            assert json.loads(http_response(client).read())["tokens_predicted"] == 9
        client.sendall(b"\n" + request + b"\r\n" + written("/completion", COMPLETION, "Connection: close"))
        assert rest(client).count(b"HTTP/1.1 200 ") == 2


def test_no_request_follows_on_a_connection_that_closes(server: Served) -> None:
    """The response says so, and the client sends the others again (RFC 9112, section 9.6)."""
    answers = exchanged(server, written("/completion", {"prompt": 5}) + written("/completion", COMPLETION))
    assert answers.count(b"HTTP/1.1 ") == answers.count(b"HTTP/1.1 400 ") == 1
    assert b"connection: close" in answers.lower()


def test_bodies_that_the_client_sends_late_or_in_chunks(server: Served) -> None:
    data = json.dumps(COMPLETION).encode()
    with connected(server) as client:
        head = written("/completion", COMPLETION, "Expect: 100-continue", "Connection: close").removesuffix(data)
        client.sendall(head)
        assert takes_interim(client)
        client.sendall(data)
        late = rest(client)
    lines = b"POST /completion HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    pieces = [data[:7], data[7:]]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    in_chunks = exchanged(server, lines + chunks + b"0\r\n\r\n")
    whole = exchanged(server, written("/completion", COMPLETION, "Connection: close"))
    assert content(read(late)[1]) == content(read(in_chunks)[1]) == content(read(whole)[1])


def test_head(server: Served) -> None:
    """The headers of GET without its body, and the connection remains."""
    connection = server.connect()
    heads = []
    for method in ("HEAD", "GET", "HEAD"):
        connection.request(method, "/health")
        response = connection.getresponse()
        heads.append((response.status, response.headers["Content-Length"], response.headers["Content-Type"]))
        assert bool(response.read()) == (method == "GET")
    assert len(set(heads)) == 1 and heads[0][0] == 200
    connection.close()
