"""Real runs of `auto` and of fixed lengths, in turns, because a machine changes between one run and the next.

    python bench/studies/auto/in_turns.py TARGET.gguf DRAFT.gguf|mtp [--n-draft 1,2,3,4] [-n 256] [--turns 12]
        [--threads 2] [--disturb]

Each generation begins knowing nothing. A turn has a text of its own, after another word of a constructed pair's
cycle: drafts may be better or worse than usual where one text begins. Printed: mean time of each length, its standard
error, the time of the best fixed length over its own, and the standard error of that, by turns: what slows a whole
turn is not in it. Among fixed lengths that differ by less than the error the best is so by luck: the share of `auto`
is rather too low than too high.
--disturb as in record_rounds.py, by the same bursts for all of a turn.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from statistics import mean, stdev

from llama_eagle.bench.ours import Job, Ours, loaded
from llama_eagle.sessions.options import MTP
from llama_eagle.sessions.text import Tokenizer
from llama_eagle.synthetic.cycle import word
from record_rounds import LENGTHS, disturbance

N_WORDS = 4096  # of every pair's cycle


def measure(ours: Ours, n_draft: int | str) -> float:
    """ms of a generation after its prompt; without the draft for 0 tokens."""
    found = ours.speculate(n_draft) if n_draft else ours.plain()
    return ours.job.n / found.tps * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", help="a file, or mtp")
    parser.add_argument("--n-draft", default="1,2,3,4", help="fixed lengths, 0 for plain decoding")
    parser.add_argument("-n", type=int, default=256, help="tokens")
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
        measure(ours, fixed[0])  # warms up
        for turn in range(args.turns):
            ours.prompt = Tokenizer(ours.pair.target).encode(f" {word(rng.randrange(N_WORDS))}")
            for n in rng.sample(kinds, len(kinds)):
                disturb(turn)
                found[n].append(measure(ours, n))
            print("  ".join(f"{n}: {times[-1] / 1e3:.2f} s" for n, times in found.items()), flush=True)
    best = found[min(fixed, key=lambda n: mean(found[n]))]
    print("| n_draft | mean, s | standard error | best over it | standard error |\n|---|---|---|---|---|")
    for n, times in found.items():
        shares = [one / other for one, other in zip(best, times, strict=True)]
        share = f"{mean(best) / mean(times):.3f} | {_error(shares):.3f}"
        print(f"| {n} | {mean(times) / 1e3:.3f} | {_error(times) / 1e3:.3f} | {share} |")


def _error(values: list[float]) -> float:
    """Of their mean."""
    return stdev(values) / len(values) ** 0.5


if __name__ == "__main__":
    main()
