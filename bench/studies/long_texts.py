"""Tokens per round of a draft in long texts, with the window that it chooses and over the last tokens alone.

    python bench/studies/long_texts.py TARGET.gguf DRAFT.gguf [--sizes 2000 6000 16000 30000] [--alone 1000]
        [--draft-ctx 2048] [-n 64] [--n-draft 4] [--threads 2]

The text is Python source of this repository. Each of six questions follows it in a chat. "alone": target and draft read
the end of the text only, so the answer is another one. --draft-ctx: context of a small model, which has no other
window.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from llama_eagle import EagleLlama
from llama_eagle.generation.stats import Statistics

ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = (
    "Explain in a few sentences what the last function of this source does.",
    "Write a unit test with pytest for the last class or function of this source.",
    "List the arguments of the last three functions and what each is for.",
    "Write a new function that uses the last one, with a docstring.",
    "What could be simplified in the last part of this source? Answer with a list.",
    "Rewrite the last function in C++.",
)
ALONE = "alone"


def source(llm: EagleLlama, size: int) -> list[int]:
    """Return the first tokens of the repository's source."""
    ids: list[int] = []
    for path in [
        *sorted((ROOT / "bindings/llama_eagle/sessions").glob("*.py")),
        *sorted((ROOT / "bench").glob("*.py")),
    ]:
        ids += llm.tokenize(f"# {path.name}\n{path.read_text()}\n".encode(), add_bos=False)
        if len(ids) >= size:
            return ids[:size]
    raise SystemExit(f"the source has {len(ids)} tokens only")


def measured(llm: EagleLlama, ids: list[int], n: int) -> dict[str, Any]:
    """Return the rounds, tokens per round and ms of a draft in the answers to all questions about a text."""
    text = llm.detokenize(ids).decode(errors="ignore")
    total = Statistics()
    for question in QUESTIONS:
        messages = [{"role": "user", "content": f"{text}\n\n{question}"}]
        llm.create_chat_completion(messages, max_tokens=n, temperature=0.0)
        total.add(llm.speculative_stats)
    draft_ms = total.ms.get("draft", 0.0) / total.rounds
    return {"rounds": total.rounds, "tokens_per_round": round(total.mean_emitted, 3), "draft_ms": round(draft_ms, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2000, 6000, 16000, 30000])
    parser.add_argument("--alone", type=int, default=1000)
    parser.add_argument("--draft-ctx", type=int, default=0)
    parser.add_argument("-n", type=int, default=64)
    parser.add_argument("--n-draft", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    context = max(args.sizes) + args.n + 512
    with EagleLlama(
        str(args.target),
        draft=str(args.draft),
        n_draft=args.n_draft,
        lookup=False,
        n_ctx=context,
        draft_n_ctx=args.draft_ctx,
        n_threads=args.threads,
    ) as llm:
        whole = source(llm, max(args.sizes))
        for size in sorted(args.sizes):
            print(json.dumps({"size": size, "whole": measured(llm, whole[:size], args.n)}), flush=True)
        for size in sorted(args.sizes):
            print(json.dumps({"size": size, ALONE: measured(llm, whole[size - args.alone : size], args.n)}), flush=True)


if __name__ == "__main__":
    main()
