"""A server that is treated badly for a while: nothing is lost, nothing grows, and what follows is right."""

from __future__ import annotations

import json
import random
import socket
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fixtures.serving import Served, serve
from fixtures.tiny_gguf import write_draft, write_target

pytestmark = [pytest.mark.native, pytest.mark.slow]

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
N_WARM, N_DROPPED, N_BAD, N_GOOD = 400, 200, 5000, 400
ALLOWED_MIB = 24  # of growth after the warm-up


def resident_mib(server: Served) -> float:
    """Of llama-server."""
    pid = server.process.pid
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    pages = int(Path(f"/proc/{child}/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def ask(server: Served, start: int) -> None:
    answer = server.complete(ALPHABET[: start % 26 + 1], 1 + start % 30, temperature=0)
    assert answer["content"] == (ALPHABET * 3)[start % 26 + 1 :][: 1 + start % 30]


def drop(server: Served, seed: int) -> None:
    server.hang_up("abc", 400, random.Random(seed).choice([1, 50, 500]))


def malformed(seed: int) -> bytes:
    """A request that is cut, changed or made up."""
    rng = random.Random(seed)
    body = json.dumps({"prompt": "abc", "n_predict": 3, "grammar": 'root ::= "a"'}).encode()
    head = (
        f"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    whole = bytearray(head.encode() + body)
    for _ in range(rng.randint(1, 8)):
        whole[rng.randrange(len(whole))] = rng.randrange(256)
    return bytes(whole[: rng.randint(1, len(whole))])


def throw(server: Served, seed: int) -> None:
    where = urllib.parse.urlparse(server.address)
    with socket.create_connection((str(where.hostname), where.port or 0), timeout=30) as connection:
        connection.sendall(malformed(seed))
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(30)
        try:
            while connection.recv(4096):
                pass
        except ConnectionResetError:
            pass


def test_nothing_is_lost_and_nothing_grows(tmp_path: Path) -> None:
    write_target(tmp_path / "target.gguf")
    write_draft(tmp_path / "draft.gguf")
    pair = ["-m", tmp_path / "target.gguf", "-d", tmp_path / "draft.gguf"]
    options = ["-c", 512, "-t", 1, "--parallel", 16, "--", "--cache-ram", 0]
    with serve(*pair, *options) as server, ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda i: ask(server, i), range(N_WARM)))
        list(pool.map(lambda i: throw(server, -i), range(N_WARM)))
        before = resident_mib(server)
        jobs = [pool.submit(drop, server, i) for i in range(N_DROPPED)]
        jobs += [pool.submit(throw, server, i) for i in range(N_BAD)]
        jobs += [pool.submit(ask, server, i) for i in range(N_GOOD)]
        for job in jobs:
            job.result()
        assert resident_mib(server) - before < ALLOWED_MIB
        assert server.process.poll() is None
        ask(server, 3)
