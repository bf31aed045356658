"""Random grammars with random samplings and drafts, a process for each case: `python samplers.py FOLDER FIRST COUNT`.

Each case is forked after the library is loaded. One line of JSON per case that did not end as "ran" or "refused".
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

PIECES = [
    '"a"', '"b"', '"xyz"', '"\\u00e9"', '"\\U0001F600"', '"<|im_end|>"', ".",
    "[a-z]", "[a-z ]", "[^a-z]", "[^\\x00]", "[0-9]",
]  # fmt: skip
TIMES = ["", "", "", "*", "+", "?", "{2}", "{0,3}", "{1,}", "{6}", "{2001}", "{1,2001}"]
SAMPLINGS: list[dict[str, Any]] = [
    {"temp": 0.0},
    {"temp": 1.0},
    {"temp": 1.0, "top_k": 1},
    {"temp": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"temp": 0.8, "repeat_penalty": 1.3},
    {"temp": 1.0, "typical_p": 0.5, "frequency_penalty": 0.5},
    {"temp": 1.0, "mirostat_mode": 1},
    {"temp": 1.0, "mirostat_mode": 2},
]
DRAFTS: list[dict[str, Any]] = [
    {"draft": "none"},
    {"n_draft": 3},
    {"n_draft": "auto"},
    {"n_draft": 4, "draft_sampling": "rejection"},
    {"n_draft": 2, "draft_sampling": "rejection"},
]


def rule(rng: random.Random, names: list[str], depth: int = 0) -> str:
    """The right side of a rule: alternatives of sequences of symbols, groups and other rules."""

    def symbol() -> str:
        kind = rng.random()
        if kind < 0.2 and depth < 3:
            return f"({rule(rng, names, depth + 1)})"
        return rng.choice(names) if kind < 0.35 else rng.choice(PIECES)

    def sequence() -> str:
        return " ".join(symbol() + rng.choice(TIMES) for _ in range(rng.randint(1, 4)))

    return " | ".join(sequence() for _ in range(rng.choice([1, 1, 1, 2, 3])))


def case(number: int) -> dict[str, Any]:
    """The case of this number: always the same."""
    rng = random.Random(number)
    names = [f"r{i}" for i in range(rng.randint(1, 3))]
    grammar = "\n".join(f"{name} ::= {rule(rng, names)}" for name in ["root", *names])
    prompt = rng.choice(["abc", "x", "caf\u00e9 \U0001f600", "a b c " * 10])
    return {
        "grammar": grammar,
        "sampling": rng.choice(SAMPLINGS),
        "draft": rng.choice(DRAFTS),
        "prompt": prompt,
        "seed": number,
    }


def generate(folder: Path, given: dict[str, Any]) -> None:
    """Generate 20 tokens by `generate` or by a completion. Raises `EagleError` for what is refused."""
    from llama_cpp import LlamaGrammar
    from llama_eagle import EagleLlama

    draft = dict(given["draft"])
    options = {"n_ctx": 256, "n_threads": 1, "verbose": False, "seed": given["seed"], **draft}
    path = None if draft.get("draft") == "none" else folder / "draft.gguf"
    with EagleLlama(folder / "target.gguf", draft_path=path, **options) as llm:
        grammar = LlamaGrammar.from_string(given["grammar"], verbose=False)
        tokens = llm.generate(llm.tokenize(given["prompt"].encode()), grammar=grammar, **given["sampling"])
        for _, token in zip(range(20), tokens, strict=False):
            if token == llm.token_eos():
                break


def forked(folder: Path, number: int) -> str | None:
    """Run the case of this number in a child and return its fault, or None."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # llama.cpp reports grammars that it cannot parse
        from llama_eagle.errors import EagleError

        try:
            generate(folder, case(number))
        except EagleError:
            pass
        except BaseException as error:
            os.write(write, repr(error).encode()[:1000])
            os._exit(1)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as reason:
        text = reason.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return None if status == 0 else text or f"signal {-status}"


def main() -> None:
    from llama_eagle.native.calls import library

    library()
    folder, first, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    for number in range(first, first + count):
        wrong = forked(folder, number)
        if wrong is not None:
            print(json.dumps({"number": number, "wrong": wrong, **case(number)}), flush=True)


if __name__ == "__main__":
    main()
