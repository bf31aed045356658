"""Total speed of llama-server with several clients: ours and the unmodified upstream, with and without a draft.

    python bench/studies/serving.py [--synthetic 0.8b] [--accept 0.7] [--clients 1 2 4 8] [-n 128] [--runs 1] [--apart]

All servers run throughout and requests alternate between them, so that drift of the machine affects all alike; results
are medians. Each client requests n tokens once. The speed is all clients' tokens over the time from the first request
to the last answer, prompts included. For comparison with one client, `generate` runs the library in this process.

--apart puts the clients on every second slot, with idle slots between them.

--cpu measures the servers' CPU time instead, for a machine that is busy with other work. It requires --threads 1,
because threads that wait for each other count too, and reports the best run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from llama_eagle import console
from llama_eagle.bench.ours import Job, loaded
from llama_eagle.bench.peer import SERVER, TOOLS, Peer, build_peer
from llama_eagle.bench.surroundings import surroundings
from llama_eagle.files import cache_dir
from llama_eagle.native.processor.threads import default_threads
from llama_eagle.serving.llama_server.loopback import open_url
from llama_eagle.synthetic.cycle import word
from llama_eagle.synthetic.ggufs import PairFolder

TIMEOUT = 900  # seconds until a server answers; reached only if something is wrong
OURS, OURS_PLAIN = "ours, draft", "ours, plain"
UPSTREAM_PLAIN = "upstream, plain"
GENERATE, GENERATE_PLAIN = "generate, draft", "generate, plain"


@dataclass(frozen=True)
class Setting:
    """Settings of all servers and of the requests."""

    target: Path
    draft: Path
    n: int
    n_draft: str
    threads: int
    slots: int
    n_ctx: int  # tokens per slot
    cpu: bool = False  # measure CPU time
    apart: bool = False  # clients on every second slot


@dataclass(frozen=True)
class Server:
    """A running server; `clock` returns seconds (wall-clock or CPU time)."""

    address: str
    clock: Callable[[], float]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def ours(setting: Setting, draft: bool) -> list[str]:
    """Return the command line of `llama-eagle serve`."""
    drafting = ["-d", str(setting.draft), "--n-draft", setting.n_draft] if draft else ["-d", "none"]
    return [
        *(sys.executable, "-m", "llama_eagle", "serve", "-m", str(setting.target), *drafting),
        *("-c", str(setting.n_ctx), "--parallel", str(setting.slots), "--threads", str(setting.threads)),
    ]


def upstream(setting: Setting, peer: Peer, n_draft: int) -> list[str]:
    """Return the command line of llama.cpp's own server, drafting n_draft tokens per round."""
    threads = str(setting.threads)
    command = [
        *(str(peer.folder / SERVER), "--model", str(setting.target), "--threads", threads, "--threads-batch", threads),
        *("--ctx-size", str(setting.n_ctx * setting.slots), "--parallel", str(setting.slots), "--fit", "off"),
    ]
    if n_draft:
        command += ["--spec-type", "draft-eagle3", "--spec-draft-model", str(setting.draft)]
        command += ["--spec-draft-n-max", str(n_draft)]
    return command


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and its children, as Linux counts it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    own = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(own[11]) + int(own[12])
    return ticks / os.sysconf("SC_CLK_TCK") + sum(cpu_seconds(int(child)) for child in children)


@contextmanager
def serving(command: list[str], cpu: bool) -> Iterator[Server]:
    """Run a server for the duration of the block, which starts when the server is healthy."""
    port = free_port()
    process = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(address, process)
        yield Server(address, (lambda: cpu_seconds(process.pid)) if cpu else time.perf_counter)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


def wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + TIMEOUT
    while process.poll() is None and time.monotonic() < end:
        try:
            open_url(f"{address}/health", TIMEOUT).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
        else:
            return
    raise SystemExit(f"{process.args!r} does not answer")


def complete(address: str, rank: int, n: int, slot: int) -> dict[str, Any]:
    """Request n tokens after three words of the constructed pair's cycle, starting at index `rank` (slot -1: any)."""
    prompt = "".join(f" {word(rank + i)}" for i in range(3))
    body = {"prompt": prompt, "n_predict": n, "temperature": 0, "cache_prompt": False, "id_slot": slot}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/completion", json.dumps(body).encode(), headers)
    with open_url(request, TIMEOUT) as response:
        return dict(json.load(response))


def measure(server: Server, n_clients: int, n: int, apart: bool = False) -> dict[str, float]:
    """Return tokens/s of all clients, tokens drafted per round and the acceptance rate."""
    with ThreadPoolExecutor(n_clients) as pool:
        start = server.clock()
        slots = [2 * client if apart else -1 for client in range(n_clients)]
        answers = list(pool.map(lambda i, slot: complete(server.address, 100 * i, n, slot), range(n_clients), slots))
        seconds = server.clock() - start
    if any(answer["tokens_predicted"] != n for answer in answers):
        raise SystemExit("an answer is shorter than requested")
    drafted = sum(answer["timings"].get("draft_n", 0) for answer in answers)
    accepted = sum(answer["timings"].get("draft_n_accepted", 0) for answer in answers)
    rounds = n_clients * n - accepted
    return {
        "tps": n_clients * n / seconds,
        "drafted_a_round": drafted / rounds,
        "accept_rate": accepted / drafted if drafted else 0.0,
    }


def middle(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: median(run[name] for run in runs) for name in runs[0]}


def commands(setting: Setting, lengths: list[int]) -> dict[str, list[str]]:
    """Return command lines by name; includes upstream's servers only if `lengths` is not empty."""
    found = {OURS_PLAIN: ours(setting, draft=False), OURS: ours(setting, draft=True)}
    if lengths:
        peer = build_peer(tools=(*TOOLS, SERVER))
        found[UPSTREAM_PLAIN] = upstream(setting, peer, 0)
        found |= {f"upstream, draft of {n}": upstream(setting, peer, n) for n in lengths}
    return found


def run(setting: Setting, clients: list[int], lengths: list[int], n_runs: int) -> dict[str, Any]:
    """Return results by server and number of clients, and the speed of `generate` with and without a draft."""
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(serving(command, setting.cpu))
            for name, command in commands(setting, lengths).items()
        }
        calls: dict[tuple[str, int], Callable[[], dict[str, float]]] = {
            (name, k): lambda server=server, k=k: measure(server, k, setting.n, setting.apart)  # type: ignore[misc]
            for k in clients
            for name, server in servers.items()
        }
        if not setting.cpu and 1 in clients:
            calls |= generating(setting, stack)
        for name, server in servers.items():
            print(f"{name}: {measure(server, 1, 16)['tps']:.1f} tokens/s after loading", file=sys.stderr)
        for (name, k), call in list(calls.items()) * n_runs:
            one = call()
            found.setdefault((name, k), []).append(one)
            print(f"{name}, {k}: {one['tps']:.1f} tokens/s", file=sys.stderr)
    results: dict[str, Any] = {}
    for (name, k), runs in found.items():
        best = max(runs, key=lambda one: one["tps"])
        results.setdefault(name, {})[k] = best if setting.cpu else middle(runs)
    return results


def generating(setting: Setting, stack: ExitStack) -> dict[tuple[str, int], Callable[[], dict[str, float]]]:
    """Return functions that measure one client's text with the library in this process."""
    job = Job(setting.target, setting.draft, " A B C", setting.n, setting.threads, n_draft_max=8)
    here = stack.enter_context(loaded(job))
    n_draft = int(setting.n_draft) if setting.n_draft.isdigit() else setting.n_draft
    return {
        (GENERATE_PLAIN, 1): lambda: {"tps": here.plain().tps},
        (GENERATE, 1): lambda: {"tps": here.speculate(n_draft).tps},
    }


def table(results: dict[str, Any], clients: list[int]) -> Iterator[str]:
    yield "| tokens/s of all clients | " + " | ".join(map(str, clients)) + " |"
    yield "|" + "---|" * (len(clients) + 1)
    for name, found in results.items():
        cells = (f"{found[k]['tps']:.1f}" if k in found else "" for k in clients)
        yield f"| {name} | " + " | ".join(cells) + " |"
    peers = [found for name, found in results.items() if name.startswith("upstream")]
    draft, plain = results[OURS], results[OURS_PLAIN]
    over = {
        "draft over plain": [draft[k]["tps"] / plain[k]["tps"] for k in clients],
        "draft over upstream's best": [
            draft[k]["tps"] / max(peer[k]["tps"] for peer in peers) for k in clients if peers
        ],
        "draft over generate's": [
            draft[k]["tps"] / results[GENERATE][1]["tps"] for k in clients if k == 1 and GENERATE in results
        ],
        "tokens drafted per round": [draft[k]["drafted_a_round"] for k in clients],
    }
    for name, values in over.items():
        yield f"| {name} | " + " | ".join(f"{value:.2f}" for value in values) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--synthetic", default="0.8b", metavar="SHAPE")
    parser.add_argument("--accept", type=float, default=0.7)
    parser.add_argument("--type", default="q8_0")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--n-draft", default="auto", help="our draft length: a number or auto")
    parser.add_argument("--upstream", type=int, nargs="*", default=[1, 3], metavar="N", help="upstream's draft lengths")
    parser.add_argument("-n", type=int, default=128, help="tokens per client (default: 128)")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--apart", action="store_true", help="put the clients on every second slot")
    parser.add_argument("--cpu", action="store_true", help="report tokens per second of CPU time")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, which ends the servers
    folder = PairFolder(cache_dir() / "synthetic" / args.synthetic, args.synthetic, fresh=False, log=console.log)
    files = folder.files(args.accept, args.type, None)
    setting = Setting(
        *(files.target, files.draft, args.n, args.n_draft, args.threads, args.slots, args.n + 128, args.cpu, args.apart)
    )
    results = run(setting, args.clients, args.upstream, args.runs)
    if args.json:
        facts = {name: getattr(args, name) for name in ("synthetic", "accept", "type", "n", "threads", "slots", "runs")}
        print(json.dumps({**facts, "results": results, **surroundings()}, indent=2))
        return
    print("\n".join(table(results, args.clients)))


if __name__ == "__main__":
    main()
