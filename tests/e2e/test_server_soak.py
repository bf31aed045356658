"""A server that is treated badly for a while: nothing is lost, nothing grows, and what follows is right."""

from __future__ import annotations

import json
import os
import random
import socket
import time
import urllib.parse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from fixtures.serving import Served, serve
from fixtures.tiny_gguf import write_draft, write_target

pytestmark = [pytest.mark.native, pytest.mark.slow]

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
N_CLIENTS = 16
SOAK_SECONDS = float(os.environ.get("LLAMA_EAGLE_SOAK_SECONDS", "600"))
N_WARM, N_DROPPED, N_BAD, N_GOOD = 400, 200, 5000, 400
ALLOWED_MIB = 24  # of growth after the warm-up
# Bytes a request, of growth after the warm-up: half of malloc's smallest block, so one forgotten each time is seen,
# however many requests the machine answers in a minute.
ALLOWED_BYTES = 16


def resident_mib(server: Served) -> float:
    """Return the resident memory of llama-server in MiB."""
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


def read_slowly(server: Served, seed: int) -> None:
    """A stream, a few bytes at a time: the others do not wait for it."""
    connection = server.connect()
    body = json.dumps({"prompt": "abc", "n_predict": 100, "temperature": 0, "stream": True})
    connection.request("POST", "/completion", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = b""
    while piece := response.read(random.Random(seed).choice([64, 512])):
        text += piece
        time.sleep(0.02)
    connection.close()
    said = "".join(json.loads(line[5:])["content"] for line in text.decode().splitlines() if line.startswith("data:"))
    assert said == (ALPHABET * 4)[3:103]


def bytes_a_request(samples: list[tuple[int, float]]) -> float:
    """The slope of (requests, MiB)."""
    return float(np.polyfit([n for n, _ in samples], [size for _, size in samples], 1)[0]) * 2**20


def test_ten_minutes(tmp_path: Path) -> None:
    """16 clients without a pause, who ask, leave, read slowly and send what cannot be read: memory stays as it is."""
    write_target(tmp_path / "target.gguf")
    write_draft(tmp_path / "draft.gguf")
    pair = ["-m", tmp_path / "target.gguf", "-d", tmp_path / "draft.gguf"]
    jobs = [drop] * N_DROPPED + [throw] * N_BAD + [read_slowly] * 100
    random.Random(1).shuffle(jobs)
    end = time.monotonic() + SOAK_SECONDS
    answered: list[int] = []
    done: list[Callable[[Served, int], None]] = []

    def client(number: int) -> None:
        """Asks, with strange requests spread over the time between."""
        mine, n = jobs[number::N_CLIENTS], 0
        start, n_jobs = time.monotonic(), len(mine)
        while time.monotonic() < end or mine:
            while mine and (n_jobs - len(mine)) / n_jobs < (time.monotonic() - start) / (0.9 * SOAK_SECONDS):
                job = mine.pop()
                job(server, len(mine) * N_CLIENTS + number)
                done.append(job)
            ask(server, n * N_CLIENTS + number)
            n += 1
            answered.append(number)

    options = ["-c", 512, "-t", 1, "--parallel", 16, "--", "--cache-ram", 0]
    samples: list[tuple[int, float]] = []
    with serve(*pair, *options) as server, ThreadPoolExecutor(N_CLIENTS) as pool:
        clients = [pool.submit(client, number) for number in range(N_CLIENTS)]
        while not all(running.done() for running in clients):
            samples.append((len(answered) + len(done), resident_mib(server)))
            time.sleep(SOAK_SECONDS / 120)
        for running in clients:
            running.result()
        assert server.process.poll() is None
    warm = samples[len(samples) // 2 :]
    ends = f"{warm[0][1]:.1f} to {warm[-1][1]:.1f} MiB, {bytes_a_request(warm):.1f} bytes a request"
    tenths = " ".join(f"{mib:.1f}" for _, mib in samples[::12])
    print(f"{len(answered)} answers, {len(done)} others, {ends}; by tenths: {tenths}")
    assert len(done) == len(jobs)
    assert bytes_a_request(warm) < ALLOWED_BYTES


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
