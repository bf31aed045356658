"""Completions with drafts, one after another: nothing grows. `make soak` makes 10,000."""

from __future__ import annotations

import gc
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fixtures.llama_pairs import ALPHABET, load, write_pairs

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif("sys.platform != 'linux'", reason="/proc tells what a process has"),
]

N = int(os.environ.get("LLAMA_EAGLE_SOAK", "400"))
ALLOWED_MIB = 4  # variation of the heap, for any number of completions


@dataclass(frozen=True)
class Held:
    mib: float
    n_threads: int
    n_descriptors: int


def held() -> Held:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    tasks, descriptors = (len(os.listdir(f"/proc/self/{name}")) for name in ("task", "fd"))  # noqa: PTH208
    return Held(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, tasks, descriptors)


def complete(llm: Any, seed: int) -> None:
    """Run a completion of varying length and kind: abandoned, edited, sampled, from a saved state."""
    rng = random.Random(seed)
    prompt = ALPHABET[: rng.randint(1, 26)] * rng.randint(1, 4)
    stream = llm.create_completion(prompt, max_tokens=rng.randint(1, 24), seed=seed, stream=True)
    for _ in zip(range(rng.randint(1, 30)), stream, strict=False):
        pass
    if seed % 50 == 0:
        llm.load_state(llm.save_state())


def test_nothing_grows(tmp_path: Path) -> None:
    llm = load(write_pairs(tmp_path), n_draft=4, n_ctx=256, checkpoint_every=64)
    for seed in range(N // 2):
        complete(llm, seed)
    before = held()
    for seed in range(N // 2, N):
        complete(llm, seed)
    after = held()
    llm.close()
    assert (after.n_threads, after.n_descriptors) == (before.n_threads, before.n_descriptors)
    assert after.mib - before.mib < ALLOWED_MIB
    print(f"{before.mib:.1f} MiB after {N // 2}, {after.mib:.1f} after {N}; {after.n_threads} threads")
