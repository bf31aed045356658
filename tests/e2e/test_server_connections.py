"""Connections of other clients than most: HTTP/1.0, requests in one write, bodies in chunks, clients that go."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import struct
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
    while len(received) < len(INTERIM) and (more := client.recv(len(INTERIM) - len(received))):
        received += more
    return received == INTERIM


def exchanged(server: Served, sent: bytes) -> bytes:
    """Return everything that the server sends."""
    with connected(server) as client:
        client.sendall(sent)
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


def events(body: bytes) -> list[str]:
    """Return the texts of a stream of completions."""
    lines = [line.removeprefix("data: ") for line in body.decode().splitlines() if line.startswith("data: ")]
    return [json.loads(line)["content"] for line in lines]


@pytest.mark.parametrize("how", ["closes", "closes its side", "resets", "goes behind a line break"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_stops_if_its_client_goes(server: Served, how: str, stream: bool) -> None:
    """A client that closes its side counts as gone: nothing shows whether it reads."""
    with connected(server) as client:
        request = written("/completion", {"prompt": ["abc"] * 2000, "n_predict": 1500, "stream": stream})
        client.sendall(request + (b"\r\n" if how == "goes behind a line break" else b""))
        wait_for(server, is_busy=True)
        if how == "resets":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if how == "closes its side":
            client.shutdown(socket.SHUT_WR)
            wait_for(server, is_busy=False)
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


def test_a_client_that_speaks_tls_learns_it_at_once(server: Served) -> None:
    context = ssl.create_default_context()
    with connected(server) as client, pytest.raises(ssl.SSLError, match=r"(?i)wrong.version|http.request|packet"):
        context.wrap_socket(client, server_hostname="localhost")


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
    answers = exchanged(server, written("/completion", {"prompt": 5}, "Connection: close") + written("/completion", {}))
    assert answers.count(b"HTTP/1.1 ") == answers.count(b"HTTP/1.1 400 ") == 1
    assert b"connection: close" in answers.lower()


def test_a_connection_outlives_a_refused_request(server: Served) -> None:
    last = written("/completion", COMPLETION, "Connection: close")
    answers = exchanged(server, written("/completion", {"prompt": 5}) + last)
    assert [answers.count(b"HTTP/1.1 %d " % status) for status in (400, 200)] == [1, 1]


def test_a_client_that_stays_silent_is_closed(server: Served) -> None:
    with connected(server) as client:
        assert client.recv(1) == b""


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
