"""Speed of drafting over plain decoding with the target on an RPC server behind a slow network; what crosses it.

    python bench/studies/cluster/rpc_latency.py TARGET.gguf DRAFT.gguf [--delay 0,0.2,1,5] [--n-draft 4] [-n 96]

A proxy between client and server, both here, holds every byte back for the delay, in each direction: a round trip takes
twice that. Server and client share the cores, so times say what latency does and not what two machines would do.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from llama_eagle.bench.ours import Job, Ours
from llama_eagle.bench.surroundings import surroundings
from llama_eagle.native.build import library_folder
from llama_eagle.sessions.models import ModelPair
from llama_eagle.sessions.options import LoadOptions

HOST = "127.0.0.1"
PROMPT = " A B C"


@dataclass(frozen=True)
class Row:
    """delay: ms in each direction. Bytes to the server and from it, per token of plain decoding and per round."""

    delay: float
    plain_tps: float
    tps: float
    over_plain: float
    mean_emitted: float
    bytes_token: tuple[float, float]
    bytes_round: tuple[float, float]


def pass_on(source: socket.socket, sink: socket.socket, delay: Any, count: Any) -> None:
    """One direction: what comes at t leaves at t + delay."""
    waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def send() -> None:
        while True:
            due, data = waiting.get()
            time.sleep(max(0.0, due - time.perf_counter()))
            if not data:
                sink.shutdown(socket.SHUT_WR)
                return
            sink.sendall(data)

    threading.Thread(target=send, daemon=True).start()
    while data := source.recv(1 << 18):
        count.value += len(data)
        waiting.put((time.perf_counter() + delay.value / 1e3, data))
    waiting.put((0.0, b""))


def run_proxy(port: int, server: int, delay: Any, sent: Any, received: Any) -> None:
    listener = socket.create_server((HOST, port))
    while True:
        client, _ = listener.accept()
        upstream = socket.create_connection((HOST, server))
        for one in (client, upstream):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for pair in ((client, upstream, delay, sent), (upstream, client, delay, received)):
            threading.Thread(target=pass_on, args=pair, daemon=True).start()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class Network:
    """A server behind a proxy."""

    def __init__(self, endpoint: str, delay: Any, sent: Any, received: Any) -> None:
        self.endpoint, self.delay, self._sent, self._received = endpoint, delay, sent, received

    def bytes(self) -> tuple[int, int]:
        """To the server and from it, so far."""
        return self._sent.value, self._received.value


@contextmanager
def network(threads: int) -> Iterator[Network]:
    server_port, port = free_port(), free_port()
    command = [str(library_folder() / "ggml-rpc-server"), "--port", str(server_port), "--threads", str(threads)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    delay, sent, received = (multiprocessing.Value(kind, 0) for kind in "dqq")
    proxy = multiprocessing.Process(target=run_proxy, args=(port, server_port, delay, sent, received), daemon=True)
    try:
        wait_for(server_port)
        proxy.start()
        wait_for(port)
        yield Network(f"{HOST}:{port}", delay, sent, received)
    finally:
        proxy.terminate()
        server.kill()
        server.wait()


def wait_for(port: int) -> None:
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return
        time.sleep(0.05)
    sys.exit(f"nothing listens on port {port}")


def measure(ours: Ours, net: Network, delay: float, n_draft: int) -> Row:
    """Bytes are those of a long run less those of a short one: contexts and their first graphs are in both."""
    net.delay.value = delay
    short = Ours(replace(ours.job, n=ours.job.n // 4), ours.pair)
    counts: list[tuple[int, int]] = [net.bytes()]
    tokens, rounds = [], []
    for run in (short, ours):
        plain = run.plain()
        counts.append(net.bytes())
        drafted = run.speculate(n_draft)
        counts.append(net.bytes())
        tokens.append(run.job.n)
        rounds.append(run.job.n / drafted.mean_emitted)
    sizes = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(counts)]
    return Row(
        delay,
        plain.tps,
        drafted.tps,
        drafted.tps / plain.tps,
        drafted.mean_emitted,
        per(sizes[0], sizes[2], tokens),
        per(sizes[1], sizes[3], rounds),
    )


def per(short: tuple[int, int], long: tuple[int, int], counts: Sequence[float]) -> tuple[float, float]:
    n = counts[1] - counts[0]
    return (long[0] - short[0]) / n, (long[1] - short[1]) / n


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--delay", default="0,0.2,1,5", help="ms in each direction")
    parser.add_argument("--n-draft", type=int, default=4)
    parser.add_argument("-n", type=int, default=96)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if not given.json:
        print("delay ms  plain tok/s  tok/s  x plain  a round  bytes/token to, from  bytes/round to, from", flush=True)
    rows = []
    with network(given.threads) as net:
        load = LoadOptions(rpc_servers=(net.endpoint,))
        job = Job(given.target, given.draft, PROMPT, given.n, given.threads, given.n_draft, load)
        with ModelPair(job.pair) as pair:
            Ours(replace(job, n=8), pair).plain()  # what is asked of a server once
            for delay in given.delay.split(","):
                rows.append(measure(Ours(job, pair), net, float(delay), given.n_draft))
                if not given.json:
                    show(rows[-1])
    if given.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], **surroundings()}))


def show(row: Row) -> None:
    speed = f"{row.delay:8.1f}  {row.plain_tps:11.2f}  {row.tps:5.2f}  {row.over_plain:7.2f}  {row.mean_emitted:7.2f}"
    print(speed, *(f"{n:10.0f}" for n in (*row.bytes_token, *row.bytes_round)), flush=True)


if __name__ == "__main__":
    main()
