"""Simulation of `auto` on recorded texts: look-up with a draft, look-up alone and plain decoding, by kind of question.

    python bench/studies/auto/simulate_texts.py record TARGET.gguf -o TEXTS.json [--limit 1] [-n 320]
    python bench/studies/auto/simulate_texts.py run TEXTS.json... [--seeds 5] [--worst 20] [--busy]

Texts are what the target answers to the built-in questions. The look-up and the policy are the real ones; the model's
drafts are right at random, with a rate that may fall by place, end or begin in the middle of a text (RATES).
Times of rounds follow COSTS, in plain decodes; the policy sees them with noise: the first rounds of a size are slower
(new graphs), and with `busy` other programs slow several rounds in a row. A share is the time of plain decoding or of
look-up alone, whichever is less, over that of `auto`, for the tokens 64 to 320 of an answer. The goal is 0.97.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from llama_eagle.bench.evaluate import Evaluation, _Answerer
from llama_eagle.bench.prompts import read_prompts, take
from llama_eagle.drafting.auto import MODEL, OFFER, Expected, Policy
from llama_eagle.drafting.draft_length import RoundCost
from llama_eagle.drafting.lookup import PromptLookup
from llama_eagle.drafting.options import NONE, DraftingOptions
from llama_eagle.native.calls import as_tokens, check
from llama_eagle.native.limits import LONGEST
from llama_eagle.sessions.models import ModelPair
from llama_eagle.sessions.options import PairOptions

FIRST, LAST = 64, 320  # tokens between which rounds count
PLAIN_MS = 30.0
NOISE, SPIKES = 0.04, 0.02  # deviation of a round's time; share of rounds that take twice as long
NEW = (1.4, 1.2, 1.1)  # the first rounds of a size, over the later ones
BURST, ROUNDS, FACTOR = 0.03, (5, 20), (1.2, 1.8)  # of other programs: chance of one to begin, length, slowness


@dataclass(frozen=True)
class Cost:
    """Times in plain decodes: of a further row up to the fifth and beyond, of a drafted token. expected: by bytes."""

    row: float
    later_row: float
    token: float
    expected: float

    def verify(self, n_draft: int) -> float:
        return 1 + self.row * min(n_draft, 4) + self.later_row * max(n_draft - 4, 0)


COSTS = {  # measured: docs/performance.md
    "9 GB/s": Cost(0.02, 0.03, 0.06, 0.06),
    "12.5 GB/s": Cost(0.03, 0.08, 0.07, 0.06),
    "no limit": Cost(0.10, 0.12, 0.10, 0.06),
    "no limit, small target": Cost(0.14, 0.18, 0.25, 0.20),
}
OFFER_MS = 0.02
HALF = (FIRST + LAST) / 2
Rate = Callable[[int, int], float]  # by place in the draft and place in the text
RATES: dict[str, Rate] = {
    **{f"{rate:g}": lambda place, at, rate=rate: rate for rate in (0.1, 0.3, 0.5, 0.7)},  # type: ignore[misc]
    "0.7, falling by place": lambda place, at: 0.7 * 0.85**place,
    "0.7, then 0": lambda place, at: 0.7 if at < HALF else 0.0,
    "0, then 0.7": lambda place, at: 0.7 if at > HALF else 0.0,
}


class Machine:
    """Times of rounds as the policy sees them, over the true ones."""

    def __init__(self, rng: random.Random, busy: bool) -> None:
        self.rng, self.busy = rng, busy
        self.tried: dict[int, int] = {}
        self.left, self.factor = 0, 1.0

    def factor_of(self, n_rows: int) -> float:
        n = self.tried[n_rows] = self.tried.get(n_rows, -1) + 1
        if self.busy and self.left == 0 and self.rng.random() < BURST:
            self.left, self.factor = self.rng.randint(*ROUNDS), self.rng.uniform(*FACTOR)
        burst = self.factor if self.left else 1.0
        self.left = max(self.left - 1, 0)
        new = NEW[n] if n < len(NEW) else 1.0
        return new * burst * self.rng.lognormvariate(0, NOISE) * (2 if self.rng.random() < SPIKES else 1)


class Text:
    """A recorded answer, and a look-up that knows its prompt."""

    def __init__(self, recorded: dict[str, list[int]]) -> None:
        self.prompt, self.tokens = recorded["prompt"], recorded["text"]
        self.last = min(LAST, len(self.tokens) - LONGEST - 1)

    def offer(self, lookup: PromptLookup, id_last: int) -> tuple[list[int], int]:
        """Return the look-up's tokens, and how many tokens it found them by."""
        ids, n, n_match = (ctypes.c_int32 * LONGEST)(), ctypes.c_int32(), ctypes.c_int32()
        numbers = (ctypes.byref(n), ctypes.byref(n_match))
        check(lookup._lib.eagle_lookup_draft(lookup.lookup, 0, id_last, ids, LONGEST, *numbers), "eagle_lookup_draft")
        return ids[: n.value], n_match.value

    def n_right(self, at: int, drafted: list[int]) -> int:
        return next((i for i, token in enumerate(drafted) if token != self.tokens[at + i]), len(drafted))


def time_of(text: Text, cost: Cost, rate: Rate | None, seed: int, busy: bool = False) -> float:
    """Return the time of the rounds that emit tokens FIRST to LAST, in plain decodes. rate: of a model, if any."""
    rng, total, at, came = random.Random(seed), 0.0, 1, text.tokens[:1]
    machine = Machine(random.Random(seed), busy)
    policy = Policy(LONGEST, has_model=rate is not None, expected=Expected(token=cost.expected))
    lookup = PromptLookup()
    lookup.begin(text.prompt)
    while at < text.last:
        policy.text(came[1:])
        lookup.accept(came[:-1])
        offered: list[int] = []
        if policy.wants_offer:
            offered, n_match = text.offer(lookup, came[-1])
            ids = as_tokens(offered)
            check(policy._lib.eagle_policy_offer(policy._handle, 0, ids, len(offered), n_match, OFFER_MS), "offer")
        source, n = policy.choose(LONGEST)
        right = [rate is not None and rng.random() < rate(i, at) for i in range(n)]
        n_right = text.n_right(at, offered[:n]) if source == OFFER else [*right, False].index(False)
        draft, verify = cost.token * n if source == MODEL else 0.0, cost.verify(n)
        ms = PLAIN_MS * machine.factor_of(n)
        policy.observe(RoundCost(n, n_right, draft * ms, verify * ms), source)
        total += draft + verify if at >= FIRST else 0.0
        came = text.tokens[at - 1 : at + n_right + 1]
        at += n_right + 1
    return total


def plain_time(text: Text, cost: Cost) -> float:
    return cost.verify(0) * (text.last - FIRST)


def run(recorded: dict[str, list[dict[str, list[int]]]], seeds: int, busy: bool) -> Iterator[tuple[float, str]]:
    """Yield the share of the better of plain decoding and look-up that `auto` reaches, and the names of its cell."""
    for kind, answers in recorded.items():
        texts = [Text(each) for each in answers]
        for where, cost in COSTS.items():
            plain = sum(plain_time(text, cost) for text in texts)
            by_lookup = mean(time_of(text, cost, None, seed, busy) for text in texts for seed in range(seeds))
            for name, rate in RATES.items():
                found = mean(time_of(text, cost, rate, seed, busy) for text in texts for seed in range(seeds))
                yield min(plain / len(texts), by_lookup) / found, f"{kind} | {where} | {name}"


def record(target: Path, limit: int, n: int) -> dict[str, list[dict[str, list[int]]]]:
    """Return prompts and answers as tokens, by category."""
    prompts = take(read_prompts(["chat", "math", "lookup"]), limit)
    found: dict[str, list[dict[str, list[int]]]] = {}
    with ModelPair(PairOptions(target, None)) as pair:
        job = Evaluation(target, prompts, n + LONGEST + 1, DraftingOptions(NONE), ignore_eos=True)
        answerer = _Answerer(job, pair, None, [])
        for prompt in prompts:
            ids = answerer.encode(prompt, prompt.given)
            text = answerer.answers(ids)[0].tokens
            found.setdefault(prompt.category, []).append({"prompt": list(ids), "text": list(text)})
            print(prompt.category, len(text), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "run"))
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("-n", type=int, default=LAST)
    parser.add_argument("--limit", type=int, default=1, help="questions of a kind (default: 1)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--worst", type=int, default=20)
    parser.add_argument("--busy", action="store_true")
    args = parser.parse_args()
    if args.what == "record":
        args.out.write_text(json.dumps(record(args.files[0], args.limit, args.n)))
        return
    for path in args.files:
        found = sorted(run(json.loads(path.read_text()), args.seeds, args.busy))
        n_short = sum(share < 0.97 for share, _ in found)
        print(f"{path.stem}: {n_short} of {len(found)} below 0.97, mean {mean(share for share, _ in found):.3f}")
        print(*(f"| {share:.3f} | {name} |" for share, name in found[: args.worst]), sep="\n")


if __name__ == "__main__":
    main()
