"""Recorder of round times by draft length on this machine.

    python bench/studies/auto/record_rounds.py TARGET.gguf DRAFT.gguf|mtp -o TRACE.json [--cycles 40] [--disturb]

A cycle has three rounds of each length, in random order; the first of the three shows the cost of a length change.
--disturb: another process computes on one core half of the time, in bursts of 0.1 to 2 seconds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from llama_eagle.drafting.auto import Expected
from llama_eagle.drafting.choose import expected_times
from llama_eagle.drafting.draft_length import RoundCost
from llama_eagle.drafting.options import DraftingOptions
from llama_eagle.drafting.resolve import session_options
from llama_eagle.generation.run import Run, decode
from llama_eagle.sessions.models import Context, ModelPair
from llama_eagle.sessions.options import MTP, ContextOptions, PairOptions
from llama_eagle.sessions.session import EagleSession
from llama_eagle.sessions.text import Tokenizer

LENGTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16)
STAY = 3  # rounds of the same length in a row
BURST = (0.1, 2.0)  # range of a burst's duration in seconds


class Recorder:
    """A policy that follows a script and records the round costs."""

    def __init__(self, cycles: int) -> None:
        rng = random.Random(1)
        self.script = [n for _ in range(cycles) for n in rng.sample(LENGTHS, len(LENGTHS)) for _ in range(STAY)]
        self.seen: list[RoundCost] = []

    def choose(self, n_max: int) -> int:
        at = len(self.seen)
        return min(self.script[at], n_max) if at < len(self.script) else 0

    def observe(self, round_cost: RoundCost) -> None:
        self.seen.append(round_cost)


def compute_in_bursts(seeds: Connection) -> None:
    """Compute in bursts derived from the last seed received, until the connection closes."""
    with suppress(EOFError):
        while True:
            rng = random.Random(seeds.recv())
            while not seeds.poll():
                end = time.monotonic() + rng.uniform(*BURST)
                while time.monotonic() < end and not seeds.poll():
                    sum(range(1000))
                seeds.poll(rng.uniform(*BURST))


@contextmanager
def disturbance(wanted: bool) -> Iterator[Callable[[int], None]]:
    """Yield a function that restarts the bursts; the same seed gives the same bursts."""
    if not wanted:
        yield lambda _seed: None
        return
    ours, theirs = multiprocessing.Pipe()
    other = multiprocessing.get_context("spawn").Process(target=compute_in_bursts, args=(theirs,), daemon=True)
    other.start()
    theirs.close()
    ours.send(0)
    try:
        yield ours.send
    finally:
        ours.close()
        other.join()


def record(target: Path, draft: str, cycles: int, disturb: bool) -> dict[str, Any]:
    """Return `rounds` ([n_draft, draft ms, verify ms] each) and `expected` (the fields of `Expected`)."""
    recorder = Recorder(cycles)
    drafting = DraftingOptions(draft, n_draft_max=max(LENGTHS), lookup=False)
    with ModelPair(PairOptions(target, MTP if draft == MTP else Path(draft))) as pair, disturbance(disturb):
        prompt = Tokenizer(pair.target).encode(" A B C")
        n = len(recorder.script) * 5 // 2
        decode(pair, prompt, Run(n), drafting, length=recorder)
        expected = expected_of(pair, drafting)
    rounds = recorder.seen[: len(recorder.script)]
    return {
        "expected": asdict(expected),
        "rounds": [[r.n_draft, round(r.draft_ms, 2), round(r.verify_ms, 2)] for r in rounds],
    }


def expected_of(pair: ModelPair, drafting: DraftingOptions) -> Expected:
    draft = pair.draft
    with (
        Context(pair.target, ContextOptions(n_ctx=64, n_rs_seq=drafting.longest)) as context,
        EagleSession(context, draft, session_options(draft.header if draft else None, drafting)) as session,
    ):
        return expected_times(session)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", help="GGUF of a draft model, or mtp")
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--cycles", type=int, default=40)
    parser.add_argument("--disturb", action="store_true")
    args = parser.parse_args()
    found = record(args.target, args.draft, args.cycles, args.disturb)
    args.out.write_text(json.dumps(found).replace("], [", "],\n[") + "\n")


if __name__ == "__main__":
    main()
