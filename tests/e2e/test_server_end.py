"""`serve` ends at a signal, whatever its clients do and whichever of its threads gets the signal."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import time
import urllib.parse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from fixtures import tiny_gguf
from fixtures.serving import Served, serve
from fixtures.tiny_gguf import write_target

pytestmark = pytest.mark.native

LONG = {"prompt": "abc", "n_predict": 100_000, "ignore_eos": True, "return_tokens": True}


def opened(server: Served, *bodies: tuple[str, object]) -> socket.socket:
    """Return a connection with requests on it, whose answers nobody reads."""
    where = urllib.parse.urlparse(server.address)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((str(where.hostname), where.port or 0))
    client.settimeout(60)
    for path, body in bodies:
        data = json.dumps(body).encode()
        client.sendall(
            b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data))
        )
        client.sendall(data)
    assert client.recv(12) == b"HTTP/1.1 200"
    return client


CLIENTS: dict[str, tuple[tuple[str, object], ...]] = {
    "waits for another request": (("/completion", {"prompt": "abc", "n_predict": 1}),),
    "reads no stream": (("/completion", {**LONG, "stream": True}),),
    "reads no answer before the next one": (("/tokenize", {"content": "abc " * 1_000_000}), ("/completion", LONG)),
}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(
        tiny_gguf, "CONTEXT", 128_000
    )  # with 2,048 tokens answers end before a busy machine sees them all
    target = write_target(tmp_path / "target.gguf")
    with serve("-m", target, "-d", "none", "-c", 128_000, "-t", 1, "--parallel", 8) as running:
        yield running


@pytest.mark.parametrize("name", CLIENTS)
def test_clients_do_not_keep_it(server: Served, name: str) -> None:
    with opened(server, *CLIENTS[name]):
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone sends signals to threads of others")
def test_a_signal_that_another_thread_gets_ends_it(server: Served) -> None:
    """The loop's thread then does not return from its wait by itself."""
    pid = server.process.pid
    threads = [int(each.name) for each in Path(f"/proc/{pid}/task").iterdir()]
    other = next(thread for thread in threads if thread != pid)
    assert ctypes.CDLL(None).tgkill(pid, other, int(signal.SIGTERM)) == 0
    assert server.process.wait(timeout=60) == 0


def children(server: Served, program: bytes) -> list[int]:
    """Return the numbers of its processes with this program: llama-server computes, template_worker renders."""
    pids: list[int] = []
    for task in Path(f"/proc/{server.process.pid}/task").iterdir():
        with suppress(FileNotFoundError):  # of a thread that has ended
            pids += map(int, (task / "children").read_text().split())
    return [pid for pid in pids if program in Path(f"/proc/{pid}/cmdline").read_bytes()]


LOOP = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_chats_that_are_rendered_do_not_keep_it(tmp_path: Path) -> None:
    """One after the other, each for the ten seconds that a template has."""
    template = tmp_path / "template.jinja"
    template.write_text(
        f"{{% for m in messages %}}{{{{ m.content }}}}{{% if m.content == 'loop' %}}{LOOP}{{% endif %}}{{% endfor %}}"
    )
    target = write_target(tmp_path / "target.gguf")
    options = ("-m", target, "-d", "none", "-c", 256, "-t", 1, "--", "--chat-template-file", template)
    with serve(*options) as server, ThreadPoolExecutor(8) as pool:
        body = {"messages": [{"role": "user", "content": "loop"}], "max_tokens": 1}
        waiting = [pool.submit(server.post, "/v1/chat/completions", body) for _ in range(8)]
        while not children(server, b"template_worker"):
            time.sleep(0.05)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=30) == 0
        for each in waiting:
            assert isinstance(each.exception() or each.result(), OSError | tuple)


CHAT = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 100_000, "ignore_eos": True}
STREAMS: dict[str, dict[str, object]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "abc", "max_tokens": 100_000, "ignore_eos": True},
    "/v1/messages": CHAT,
    "/v1/responses": {"input": "abc", "ignore_eos": True},
    "/api/chat": {**CHAT, "model": "target", "options": {"num_predict": -1}},
}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_clients_get_an_error_when_the_child_crashes(server: Served) -> None:
    """With a status before the answer has begun, and as the last event of a stream."""
    streams = [opened(server, (path, {**body, "stream": True})) for path, body in STREAMS.items()]
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.post, "/completion", LONG)
        while sum(slot["is_processing"] for slot in server.get("/slots")[1]) <= len(STREAMS):
            assert not answer.done(), answer.result()
            time.sleep(0.05)
        (child,) = children(server, b"llama-server")
        os.kill(child, signal.SIGKILL)
        status, body = answer.result()
    assert status == 503 and "llama-server has ended" in body["error"]["message"]
    for stream in streams:
        data = b"".join(iter(lambda client=stream: client.recv(1 << 16), b""))  # type: ignore[misc]
        assert b"llama-server has ended" in data and data.endswith(b"0\r\n\r\n")
        stream.close()
    assert server.process.wait(timeout=60) == 4
    assert "killed, perhaps for lack of memory" in server.log()
