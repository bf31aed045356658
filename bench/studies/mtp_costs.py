"""Costs of the target's MTP head on this machine: a drafted token by rows of the head, and a prompt.

    python bench/studies/mtp_costs.py TARGET.gguf [--rows 8192 32768 all] [--threads 2] [--prompt 2048] [--json]

Measurements alternate, so that drift of the machine affects all alike; results are medians. A drafted token is a
quarter of a draft of four.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from llama_eagle.sessions.models import Context, Model
from llama_eagle.sessions.options import ContextOptions, LoadOptions, SessionOptions
from llama_eagle.sessions.session import EagleSession

N_DRAFT = 4
N_TIMES = 40
FIRST = 300  # first token of the prompt; tokens from here are ordinary in every vocabulary


def sessions(model: Model, rows: list[int], threads: int, n_ctx: int, stack: ExitStack) -> Iterator[Any]:
    """Open a session without a draft, then one for each number of MTP head rows (0: all)."""
    plain = stack.enter_context(Context(model, ContextOptions(n_ctx, n_threads=threads)))
    yield stack.enter_context(EagleSession(plain, None, SessionOptions(0)))
    for n in rows:
        options = ContextOptions(n_ctx, n_threads=threads, n_rs_seq=N_DRAFT)
        context = stack.enter_context(Context(model, options))
        yield stack.enter_context(EagleSession(context, model, SessionOptions(N_DRAFT, n_vocab_draft=n)))


def medians(calls: list[Callable[[], None]], n_times: int) -> list[float]:
    """Return the median ms of each call, alternating between them."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(n_times):
        for call, mine in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            mine.append((time.perf_counter() - start) * 1e3)
    return [median(mine) for mine in times]


def decode(session: EagleSession) -> None:
    session.verify([FIRST])
    session.commit(1)


def evaluate(session: Any, tokens: list[int]) -> None:
    session.reset()
    session.eval(tokens)


def measure(path: Path, rows: list[int], threads: int, n_prompt: int, n_prompts: int) -> dict[str, Any]:
    tokens = list(range(FIRST, FIRST + n_prompt))
    n_ctx = n_prompt + N_TIMES + N_DRAFT + 2
    with Model.target(path, LoadOptions(load_mtp=True)) as model, ExitStack() as stack:
        plain, *drafting = sessions(model, rows, threads, n_ctx, stack)
        prompts = medians([lambda s=s: evaluate(s, tokens) for s in (plain, *drafting)], n_prompts)  # type: ignore[misc]
        drafts: list[Callable[[], None]] = [lambda s=s: s.draft(FIRST, N_DRAFT) for s in drafting]  # type: ignore[misc]
        decode_ms, *draft_ms = medians([lambda: decode(plain), *drafts], N_TIMES)
    found = {
        "all" if n == 0 else str(n): {
            "token_ms": ms / N_DRAFT,
            "over_decode": ms / N_DRAFT / decode_ms,
            "prompt_over_plain": prompt / prompts[0],
        }
        for n, ms, prompt in zip(rows, draft_ms, prompts[1:], strict=True)
    }
    return {"model": path.name, "threads": threads, "decode_ms": decode_ms, "prompt_ms": prompts[0], "rows": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument(
        "--rows", nargs="+", default=["8192", "16384", "32768", "all"], help="numbers of head rows, or all"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=2048, help="prompt length in tokens (default: 2048)")
    parser.add_argument("--prompts", type=int, default=3, help="evaluations of the prompt (default: 3)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = [0 if n == "all" else int(n) for n in args.rows]
    report = measure(args.target, rows, args.threads, args.prompt, args.prompts)
    if args.json:
        print(json.dumps(report, indent=2))
        return
    print(f"{report['model']}: decode {report['decode_ms']:.2f} ms, prompt {report['prompt_ms']:.0f} ms")
    print("| rows | ms per drafted token | over a decode | prompt over plain |\n|---|---|---|---|")
    for name, row in report["rows"].items():
        print(f"| {name} | {row['token_ms']:.2f} | {row['over_decode']:.1%} | {row['prompt_over_plain']:.3f} |")


if __name__ == "__main__":
    main()
