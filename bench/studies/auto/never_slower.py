"""Real runs of plain decoding, look-up alone and a draft with look-up, one after another, by kind of question.

    python bench/studies/auto/never_slower.py TARGET.gguf [--draft DRAFT.gguf|mtp] [--data chat,math,lookup] [--limit 1]
        [--accept 0.3 ...] [--turns 2] [-n 320] [--first 64] [--threads 2] [--seconds 110] [--runs RUNS.jsonl]

A side's time is that of its rounds behind the first 64 tokens. Each round counts with the lower quartile of all rounds
of its kind and size in any turn, because other programs slow some rounds down. A share is the time of the better of
plain decoding and look-up over that of a side; the goal of `auto` is 0.97. Answers of less than
128 tokens are left out. --seconds starts no question that would end
later; with --runs the next call continues after the questions of the file.

--accept: the draft takes its own time, but each of its tokens is that of the plain answer with this probability.
Several rates divide the answer into equal parts.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

from llama_eagle.bench.evaluate import Evaluation, _Answerer
from llama_eagle.bench.prompts import Prompt, read_prompts, take
from llama_eagle.drafting.auto import Policy
from llama_eagle.drafting.draft_length import RoundCost
from llama_eagle.drafting.options import LOOKUP, NONE, DraftingOptions
from llama_eagle.drafting.session_draft import SessionDraft
from llama_eagle.generation.run import decode
from llama_eagle.sessions.models import ModelPair
from llama_eagle.sessions.options import PairOptions

PLAIN, DRAFT = "plain", "draft"
Step = tuple[int, int, int, float, float]  # source, drafted and accepted tokens, ms of the draft and of the rest


@contextmanager
def recorded() -> Iterator[list[Step]]:
    """Collect the rounds of all policies."""
    steps: list[Step] = []
    observe = Policy.observe

    def also(policy: Policy, cost: RoundCost, source: int) -> None:
        steps.append((source, cost.n_draft, cost.n_accepted, cost.draft_ms, cost.verify_ms))
        observe(policy, cost, source)

    Policy.observe = also  # type: ignore[assignment, method-assign]
    try:
        yield steps
    finally:
        Policy.observe = observe  # type: ignore[method-assign]


@contextmanager
def accepted(rates: list[float], text: list[int], n_prompt: int) -> Iterator[None]:
    """Let drafts equal `text` with these rates, over equal parts of the answer. Without rates, keep them."""
    draft = SessionDraft.draft
    rng = random.Random(0)
    n = len(text) - n_prompt
    right = [True] * n_prompt + [rng.random() < rates[i * len(rates) // n] for i in range(n if rates else 0)]

    def known(self: SessionDraft, id_last: int, n_max: int) -> list[int]:
        drafted, first = draft(self, id_last, n_max), self._session.n_past + 1
        places = range(first, min(first + len(drafted), len(text)))
        return [text[at] if right[at] else text[at] ^ 1 for at in places]

    if rates:
        SessionDraft.draft = known  # type: ignore[method-assign]
    try:
        yield
    finally:
        SessionDraft.draft = draft  # type: ignore[method-assign]


def sides(draft: str | None) -> dict[str, DraftingOptions]:
    """Return the drafting options of each side, all with lengths by themselves."""
    found = {PLAIN: DraftingOptions(NONE), LOOKUP: DraftingOptions(LOOKUP)}
    return {**found, DRAFT: DraftingOptions(draft)} if draft else found


def measured(
    answerer: _Answerer, prompt: Prompt, compared: dict[str, DraftingOptions], turns: int, rates: list[float]
) -> dict[str, Any]:
    """Return the rounds of each side by turn, and whether all texts are equal."""
    ids = answerer.encode(prompt, prompt.given)
    rounds: dict[str, list[list[Step]]] = {side: [] for side in compared}
    texts: set[str] = set()
    rng = random.Random(0)
    known = [*ids, *decode(answerer.pair, ids, answerer.run).tokens] if rates else []
    for _ in range(turns):
        for side in rng.sample(list(compared), len(compared)):
            with accepted(rates, known, len(ids)), recorded() as steps:
                result = decode(answerer.pair, ids, answerer.run, compared[side])
            each = result.decode_ms / max(len(result.tokens), 1)
            rounds[side].append(steps if side != PLAIN else [(0, -1, 0, 0.0, each)] * len(result.tokens))
            texts.add(result.text)
    return {"kind": prompt.category, "rounds": rounds, "equal": len(texts) == 1}


def quartile(values: list[float]) -> float:
    return sorted(values)[(len(values) - 1) // 4]


class Times:
    """Typical times of rounds by kind and size."""

    def __init__(self, runs: list[dict[str, Any]]) -> None:
        drafts, verifies = defaultdict(list), defaultdict(list)
        for run in runs:
            for turns in run["rounds"].values():
                for source, n, _, draft_ms, verify_ms in (step for steps in turns for step in steps):
                    drafts[source, n].append(draft_ms)
                    verifies[n].append(verify_ms)
        self.drafts = {key: quartile(values) for key, values in drafts.items()}
        self.verifies = {key: quartile(values) for key, values in verifies.items()}

    def seconds(self, steps: list[Step], first: int) -> float:
        total, at = 0.0, 1
        for source, n, n_accepted, *_ in steps:
            total += (self.drafts[source, n] + self.verifies[n]) / 1e3 if at >= first else 0.0
            at += n_accepted + 1
        return total


def lines(runs: list[dict[str, Any]], first: int) -> Iterator[str]:
    """Yield a table of shares by kind."""
    times, names = Times(runs), list(runs[0]["rounds"])
    yield "ms by drafted tokens (-1: plain): " + ", ".join(f"{n} {ms:.2f}" for n, ms in sorted(times.verifies.items()))
    yield f"| kind | {' | '.join(names)} | texts equal |\n|{'---|' * (len(names) + 2)}"
    shares: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if len(run["rounds"][PLAIN][0]) < 2 * first:
            continue  # too short an answer
        found = {name: mean(times.seconds(steps, first) for steps in run["rounds"][name]) for name in names}
        for name, seconds in found.items():
            for kind in (run["kind"], "all"):
                shares[kind][name].append(min(found[PLAIN], found[LOOKUP]) / seconds)
    for kind, of in shares.items():
        equal = all(run["equal"] for run in runs if kind in ("all", run["kind"]))
        yield f"| {kind} | {' | '.join(f'{mean(of[name]):.3f}' for name in names)} | {equal} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--draft")
    parser.add_argument("--data", default="chat,math,lookup")
    parser.add_argument("--limit", type=int, default=1)
    parser.add_argument("--accept", type=float, nargs="+", default=[])
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("-n", type=int, default=320)
    parser.add_argument("--first", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--runs", type=Path)
    args = parser.parse_args()
    prompts = take(read_prompts(args.data.split(",")), args.limit)
    runs = [json.loads(line) for line in args.runs.read_text().splitlines()] if args.runs and args.runs.exists() else []
    begun, longest = time.monotonic(), 0.0
    draft = Path(args.draft) if args.draft not in (None, "mtp") else args.draft
    with ModelPair(PairOptions(args.target, draft)) as pair:
        job = Evaluation(args.target, prompts, args.n, DraftingOptions(NONE), threads=args.threads)
        answerer = _Answerer(job, pair, None, [])
        for prompt in prompts[len(runs) :]:
            at = time.monotonic()
            if at + longest > begun + args.seconds:
                break
            runs.append(measured(answerer, prompt, sides(args.draft), args.turns, args.accept))
            if args.runs:
                with args.runs.open("a") as file:
                    print(json.dumps(runs[-1]), file=file)
            longest = max(longest, time.monotonic() - at)
    print(f"{len(runs)} of {len(prompts)} questions", *lines(runs, args.first), sep="\n")


if __name__ == "__main__":
    main()
