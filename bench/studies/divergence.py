"""Divergence of quantized models from an unquantized one: Kullback-Leibler divergence on a text.

    python bench/studies/divergence.py model-bf16.gguf --text held-out.txt q8_0 q4_k_m q4_k_m:speculation

Each candidate is a type, or type:recipe, and is quantized into a temporary folder. All logits of the reference stay in
memory: 4 bytes x vocabulary x tokens.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from llama_eagle.quantize.quantize import QuantizeOptions, quantize
from llama_eagle.sessions.exact_check import decode_logits
from llama_eagle.sessions.models import Context, Model
from llama_eagle.sessions.options import ContextOptions
from llama_eagle.sessions.text import Tokenizer

WINDOW = 256  # tokens per context; each window starts with an empty one


@dataclass(frozen=True)
class Divergence:
    """Divergence over the tokens of a text, in nats.

    `same_top` is the fraction of tokens whose most probable next token is the same.
    """

    n_tokens: int
    mean: float
    standard_error: float
    percentile_99: float
    same_top: float
    n_bytes: int


def windows(path: Path, tokens: list[int], threads: int) -> Iterator[np.ndarray]:
    """Compute log-probabilities [n, vocab] of each window of the text."""
    with Model(path) as model:
        for start in range(0, len(tokens), WINDOW):
            with Context(model, ContextOptions(n_ctx=WINDOW, n_threads=threads)) as context:
                yield log_softmax(decode_logits(context, tokens[start : start + WINDOW], 0))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def compare(reference: list[np.ndarray], path: Path, tokens: list[int], threads: int) -> Divergence:
    divergences, same = [], []
    for expected, found in zip(reference, windows(path, tokens, threads), strict=True):
        divergences.append((np.exp(expected) * (expected - found)).sum(axis=-1))
        same.append(expected.argmax(axis=-1) == found.argmax(axis=-1))
    values = np.concatenate(divergences)
    return Divergence(
        n_tokens=len(values),
        mean=float(values.mean()),
        standard_error=float(values.std(ddof=1) / len(values) ** 0.5),
        percentile_99=float(np.percentile(values, 99)),
        same_top=float(np.concatenate(same).mean()),
        n_bytes=path.stat().st_size,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference", type=Path, help="GGUF of bf16, f16 or f32")
    parser.add_argument("candidates", nargs="+", metavar="TYPE[:RECIPE]")
    parser.add_argument("--text", type=Path, required=True, help="UTF-8 text, or JSONL with the key text or prompt")
    parser.add_argument("--tokens", type=int, default=8192, help="maximum number of tokens (default: 8192)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with Model(arguments.reference) as model:
        tokens = Tokenizer(model).encode(_text(arguments.text))[: arguments.tokens]
    reference = list(windows(arguments.reference, tokens, arguments.threads))
    results: dict[str, Divergence] = {}
    with tempfile.TemporaryDirectory() as folder:
        for candidate in arguments.candidates:
            outtype, _, recipe = candidate.partition(":")
            path = Path(folder) / f"{outtype}-{recipe}.gguf"
            quantize(arguments.reference, path, outtype, QuantizeOptions(recipe=recipe or None))
            results[candidate] = compare(reference, path, tokens, arguments.threads)
    if arguments.json:
        print(json.dumps({name: asdict(result) for name, result in results.items()}))
        return
    for name, r in results.items():
        print(
            f"{name:20} {r.n_bytes / 1e6:8.2f} MB  {r.mean:.5f} +- {r.standard_error:.5f} nats  "
            f"99 %: {r.percentile_99:.4f}  same top token {r.same_top:.2%}"
        )


def _text(path: Path) -> str:
    text = path.read_text("utf-8")
    if path.suffix != ".jsonl":
        return text
    lines = filter(str.strip, text.split("\n"))
    found = [record.get("text", record.get("prompt", "")) for record in map(json.loads, lines)]
    return "\n\n".join(part for part in found if part)


if __name__ == "__main__":
    main()
