"""Real runs of `auto` and of fixed lengths, alternating because a machine changes from run to run.

    python bench/studies/auto/in_turns.py TARGET.gguf DRAFT.gguf|mtp [--n-draft 1,2,3,4] [-n 256] [--turns 12]
        [--threads 2] [--disturb]

Each generation starts without prior measurements. Each turn starts at a different word of a constructed pair's cycle,
because drafts at the start of one particular text may be better or worse than average. The table shows each length's
mean time and its standard error, and the ratio of the best fixed length's time to it with the standard error over
turns, which excludes what slows down a whole turn. If fixed lengths differ by less than the error, the best one is
partly luck, so the ratio of `auto` is underestimated rather than overestimated.

--disturb works as in record_rounds.py, with the same bursts for all runs of a turn.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path
from statistics import mean, stdev

from llama_eagle.bench.ours import Job, Ours, loaded
from llama_eagle.sessions.options import MTP
from llama_eagle.sessions.text import Tokenizer
from llama_eagle.synthetic.cycle import word
from record_rounds import LENGTHS, disturbance

N_WORDS = 4096  # words in the cycle of every constructed pair


def measure(ours: Ours, n_draft: int | str) -> float:
    """Return the ms of a generation after its prompt; 0 tokens means plain decoding."""
    found = ours.speculate(n_draft) if n_draft else ours.plain()
    return ours.job.n / found.tps * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", help="GGUF of a draft model, or mtp")
    parser.add_argument("--n-draft", default="1,2,3,4", help="fixed lengths; 0: plain decoding (default: 1,2,3,4)")
    parser.add_argument("-n", type=int, default=256, help="tokens per generation (default: 256)")
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--disturb", action="store_true")
    args = parser.parse_args()
    fixed = [int(n) for n in args.n_draft.split(",")]
    kinds: list[int | str] = [*fixed, "auto"]
    found: dict[int | str, list[float]] = {n: [] for n in kinds}
    rng = random.Random(0)
    draft = None if args.draft == MTP else Path(args.draft)
    job = Job(args.target, draft, " A B C", args.n, args.threads, n_draft_max=max(LENGTHS))
    with loaded(job) as ours, disturbance(args.disturb) as disturb:
        measure(ours, fixed[0])  # warm-up
        for turn in range(args.turns):
            ours.prompt = Tokenizer(ours.pair.target).encode(f" {word(rng.randrange(N_WORDS))}")
            for n in rng.sample(kinds, len(kinds)):
                disturb(turn)
                found[n].append(measure(ours, n))
            print("  ".join(f"{n}: {times[-1] / 1e3:.2f} s" for n, times in found.items()), file=sys.stderr)
    best = found[min(fixed, key=lambda n: mean(found[n]))]
    print("| n_draft | mean, s | standard error | best fixed over this | standard error |\n|---|---|---|---|---|")
    for n, times in found.items():
        shares = [one / other for one, other in zip(best, times, strict=True)]
        share = f"{mean(best) / mean(times):.3f} | {_error(shares):.3f}"
        print(f"| {n} | {mean(times) / 1e3:.3f} | {_error(times) / 1e3:.3f} | {share} |")


def _error(values: list[float]) -> float:
    """Return the standard error of the mean."""
    return stdev(values) / len(values) ** 0.5


if __name__ == "__main__":
    main()
