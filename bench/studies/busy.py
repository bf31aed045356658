"""Decoding speed while other programs compute: ours with all threads and with one, with a draft, and llama.cpp's own.

    python bench/studies/busy.py TARGET.gguf [--draft DRAFT.gguf|mtp] [--loads idle one two ...] [-n 64] [--runs 3]
                                 [--prompt TEXT] [--clients 4] [--peers] [--json]

Each load is a set of busy processes that run during the measurements. Under each load, measurements alternate between
all sides; the table shows medians in tokens/s and the ratio to the same side on an idle machine. With --clients, our
server answers N clients at once, with prompts of a constructed pair.

| load | busy processes |
|---|---|
| idle | none |
| one, two | one on the first core, one on each of the first two |
| one-free, two-free, four-free | one, two or four, placed by the system |
| bursts | one on the first core that alternates between 10 to 300 ms of computing and of sleep |
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import serving
from llama_eagle.bench.peer import PeerJob, build_peer
from llama_eagle.bench.surroundings import surroundings
from llama_eagle.drafting.options import NONE, DraftingOptions
from llama_eagle.generation.run import GREEDY, Run, decode
from llama_eagle.native.processor.threads import default_threads
from llama_eagle.sessions.models import ModelPair
from llama_eagle.sessions.options import MTP, PairOptions
from llama_eagle.sessions.text import Tokenizer

BUSY = "while True: pass"
BURSTS = """
import random, time
random = random.Random(1)
while True:
    end = time.perf_counter() + random.uniform(0.01, 0.3)
    while time.perf_counter() < end: pass
    time.sleep(random.uniform(0.01, 0.3))
"""
# The program of each busy process and its core (None: any).
LOADS: dict[str, list[tuple[str, int | None]]] = {
    "idle": [],
    "one": [(BUSY, 0)],
    "two": [(BUSY, 0), (BUSY, 1)],
    "one-free": [(BUSY, None)],
    "two-free": [(BUSY, None)] * 2,
    "four-free": [(BUSY, None)] * 4,
    "bursts": [(BURSTS, 0)],
}
PROMPT = "Explain how a compiler turns a loop into machine code, step by step."


@contextmanager
def load(name: str) -> Iterator[None]:
    """Run the busy processes of one load."""
    cores = sorted(os.sched_getaffinity(0))
    processes = []
    try:
        for program, core in LOADS[name]:
            pin = [] if core is None else ["taskset", "-c", str(cores[core])]
            processes.append(subprocess.Popen([*pin, sys.executable, "-c", program]))
        time.sleep(0.5 if processes else 0)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(sides: dict[str, Callable[[], float]], runs: int) -> dict[str, float]:
    """Return the median tokens/s of each side."""
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(runs):
        for name, side in sides.items():
            speeds[name].append(side())
    return {name: round(median(values), 1) for name, values in speeds.items()}


def sides_of(args: argparse.Namespace, stack: ExitStack) -> dict[str, Callable[[], float]]:
    threads = default_threads()
    draft = args.draft if args.draft in (None, MTP) else Path(args.draft)
    pair = stack.enter_context(ModelPair(PairOptions(args.target, draft)))
    prompt = Tokenizer(pair.target).encode(args.prompt)

    def ours(n_threads: int, drafting: DraftingOptions = DraftingOptions(NONE)) -> Callable[[], float]:
        return lambda: decode(pair, prompt, Run(args.n, n_threads, GREEDY), drafting).tokens_per_second

    sides = {"plain": ours(threads), "plain, 1 thread": ours(1)}
    if draft:
        sides["drafting"] = ours(threads, DraftingOptions(draft))
    if args.clients:
        sides |= servers(args, stack, threads)
    if args.peers:
        peer = build_peer()
        sides["llama.cpp"] = lambda: peer.decode(PeerJob(args.target, args.n, threads))
    return sides


def servers(args: argparse.Namespace, stack: ExitStack, threads: int) -> dict[str, Callable[[], float]]:
    """Return functions that measure all clients' tokens/s from our server, without and with a draft."""
    name = f"server, {args.clients} clients"
    setting = serving.Setting(args.target, args.draft or NONE, args.n, "auto", threads, args.clients, 4 * args.n + 64)
    found: dict[str, Callable[[], float]] = {}
    for draft in (False, True) if args.draft else (False,):
        server = stack.enter_context(serving.serving(serving.ours(setting, draft), cpu=False))
        found[name + (", drafting" if draft else "")] = partial(_speed, server, args.clients, args.n)
    return found


def _speed(server: serving.Server, n_clients: int, n: int) -> float:
    return serving.measure(server, n_clients, n)["tps"]


def show(results: dict[str, dict[str, float]]) -> None:
    names = list(next(iter(results.values())))
    print("| load | " + " | ".join(names) + " |\n|---|" + "---|" * len(names))
    for name, speeds in results.items():
        cells = [f"{speed:g} ({speed / results['idle'][side]:.2f})" for side, speed in speeds.items()]
        print(f"| {name} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--draft", help="GGUF of a draft model, or mtp for the target's MTP head")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS), help="idle is always measured")
    parser.add_argument("-n", type=int, default=64, help="tokens per run (default: 64)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each side under each load (default: 3)")
    parser.add_argument("--prompt", default=PROMPT, help='prompt text; use " A B C" for a constructed pair')
    parser.add_argument("--clients", type=int, help="also measure our server with N concurrent clients")
    parser.add_argument("--peers", action="store_true", help="also measure llama.cpp's own llama-bench")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    results = {}
    with ExitStack() as stack:
        sides = sides_of(args, stack)
        for name in dict.fromkeys(["idle", *args.loads]):
            with load(name):
                results[name] = measure(sides, args.runs)
            print(f"{name}: {results[name]}", file=sys.stderr)
    if args.json:
        print(json.dumps({"surroundings": surroundings(), "tokens_per_second": results}))
    else:
        show(results)


if __name__ == "__main__":
    main()
