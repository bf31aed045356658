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
from pathlib import Path

import pytest
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
def server(tmp_path: Path) -> Iterator[Served]:
    target = write_target(tmp_path / "target.gguf")
    with serve("-m", target, "-d", "none", "-c", 128_000, "-t", 1, "--parallel", 2) as running:
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


def child_of(server: Served) -> int:
    """Return the number of the process that computes."""
    found = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    return next(int(pid) for pid in found if b"llama-server" in Path(f"/proc/{pid}/cmdline").read_bytes())


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_clients_get_an_error_when_the_child_crashes(server: Served) -> None:
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.post, "/completion", LONG)
        while not any(slot["is_processing"] for slot in server.get("/slots")[1]):
            time.sleep(0.05)
        os.kill(child_of(server), signal.SIGKILL)
        status, body = answer.result()
    assert status == 503 and "llama-server has ended" in body["error"]["message"]
    assert server.process.wait(timeout=60) == 4
    assert "killed, perhaps for lack of memory" in server.log()
