"""Simulation of `auto` on recorded round times, compared with the best fixed length.

    python bench/studies/auto/record_rounds.py TARGET.gguf DRAFT.gguf|mtp -o TRACE.json [--disturb]
    python bench/studies/auto/simulate.py TRACE.json... [--tokens 256 1024] [--accept 0.1 0.3 0.5 0.7 0.9] [--seeds 20]

A simulated round takes the median time of recorded rounds of its length near that time, multiplied by the slowdown of
the round recorded at this moment. Simulated and recorded time advance together: the machine is slow as often and as
long as it was, and the lengths keep their ratios over time. Drafts are accepted at random.
"""

from __future__ import annotations

import argparse
import json
import random
from bisect import bisect_right
from functools import cache
from itertools import accumulate
from pathlib import Path
from statistics import mean, median

from llama_eagle.drafting.auto import UNKNOWN, Auto, Expected
from llama_eagle.drafting.draft_length import DraftLength, Fixed, RoundCost
from record_rounds import LENGTHS

NEARBY = 2_000.0  # ms; within this time the lengths keep their ratios
N_NEAREST = 9  # rounds in a median


class Trace:
    """Rounds [n_draft, draft ms, verify ms] in the order of their recording."""

    def __init__(self, rounds: list[list[float]], expected: Expected = UNKNOWN) -> None:
        self.expected = expected
        totals = [draft + verify for _, draft, verify in rounds]
        self._starts = list(accumulate(totals, initial=0.0))
        kinds = [(int(n), i > 0 and n != rounds[i - 1][0]) for i, (n, *_) in enumerate(rounds)]
        self._found: dict[tuple[int, bool], list[tuple[float, float, float]]] = {}
        for kind, start, (_, draft, verify) in zip(kinds, self._starts, rounds, strict=False):
            self._found.setdefault(kind, []).append((start, draft, verify))
        self._usual = cache(self._usual_at)
        self._slowness = [
            total / sum(self._usual(kind, start // NEARBY))
            for kind, start, total in zip(kinds, self._starts, totals, strict=False)
        ]
        self.lengths = sorted({n for n, _ in kinds})

    def _usual_at(self, kind: tuple[int, bool], part: float) -> tuple[float, float]:
        """Return draft and verify ms: medians of the rounds of this kind recorded nearest in time."""
        nearest = sorted(self._found[kind], key=lambda each: abs(each[0] - (part + 0.5) * NEARBY))[:N_NEAREST]
        return median(draft for _, draft, _ in nearest), median(verify for *_, verify in nearest)

    def round(self, n_draft: int, changed: bool, at_ms: float) -> tuple[float, float]:
        """Return draft and verify ms with the slowdown at `at_ms`.

        An unrecorded length counts as the next longer recorded one.
        """
        n = next(length for length in self.lengths if length >= n_draft)
        at_ms %= self._starts[-1]
        slowness = self._slowness[bisect_right(self._starts, at_ms) - 1]
        draft, verify = self._usual((n, changed), at_ms // NEARBY)
        return draft * slowness, verify * slowness


def speed(trace: Trace, n_draft: int | str, accept: float, n_tokens: int, seed: int) -> float:
    """Return tokens per ms of a generation that starts at a random point of the recording."""
    rng = random.Random(seed)
    longest = max(trace.lengths)
    length: DraftLength = Auto(longest, trace.expected) if n_draft == "auto" else Fixed(int(n_draft))
    begin = random.Random(seed).random() * 1e6
    ms, n, last = 0.0, 0, -1
    while n < n_tokens:
        n_drafted = length.choose(longest)
        is_right = [rng.random() < accept for _ in range(n_drafted)]
        n_right = next((i for i, right in enumerate(is_right) if not right), n_drafted)
        draft_ms = trace.round(n_drafted, False, begin + ms)[0] if n_drafted else 0.0
        verify_ms = trace.round(n_drafted, n_drafted != last, begin + ms)[1]
        length.observe(RoundCost(n_drafted, n_right, draft_ms, verify_ms))
        ms, n, last = ms + draft_ms + verify_ms, n + n_right + 1, n_drafted
    return n / ms


def over_best_fixed(trace: Trace, accept: float, n_tokens: int, seeds: int) -> float:
    means = {n: mean(speed(trace, n, accept, n_tokens, seed) for seed in range(seeds)) for n in (*LENGTHS, "auto")}
    return means.pop("auto") / max(means.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="+")
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--accept", type=float, nargs="+", default=[0.1, 0.3, 0.5, 0.7, 0.9])
    parser.add_argument("--seeds", type=int, default=20)
    args = parser.parse_args()
    print("| recording | tokens |", " | ".join(f"{accept:g}" for accept in args.accept), "|")
    print("|---" * (len(args.accept) + 2), "|", sep="")
    for path in args.traces:
        found = json.loads(path.read_text())
        trace = Trace(found["rounds"], Expected(**found["expected"]))
        for n_tokens in args.tokens:
            shares = (over_best_fixed(trace, accept, n_tokens, args.seeds) for accept in args.accept)
            print(f"| {path.stem} | {n_tokens} |", " | ".join(f"{share:.3f}" for share in shares), "|", flush=True)


if __name__ == "__main__":
    main()
