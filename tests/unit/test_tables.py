"""Tables for people fit a terminal of 80 columns, digits and all."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
from fixtures.tiny_gguf import write_target
from llama_eagle import console
from llama_eagle.bench import evaluation_report, report
from llama_eagle.demo.run import Comparison, DemoResult
from llama_eagle.gguf.describe import GUESSED, describe, file_type, render
from llama_eagle.gguf.header import read_model
from rich.console import Console, Group
from rich.table import Table

ROW = {
    "tps": 1234.56, "accept_rate": 0.987, "mean_emitted": 12.34, "round_ms": 1234.5, "verify_ms": 1234.5,
    "draft_ms": 123.4, "python_share": 0.123,
}  # fmt: skip
SCORE = {
    "n_turns": 480, "n_same": 480, "n_tokens": 122880, "mean_emitted": 3.21, "plain_tps": 1234.56, "tps": 1234.56,
    "over_plain": 12.34, "accepted_per_position": [0.98] * 9,
}  # fmt: skip


def bench() -> Group:
    steps = [{"depth": 32768, "decode_ms": 1234.5, "draft_ms": 123.4, "verify_ms": [1234.5] * 8}]
    prompts = [
        {"n": 32768, "plain_tps": 1234.5, "draft_tps": 1234.5, "draft_over_plain": 1.012, "upstream_tps": 1234.5}
    ]
    rows = [{"n_draft": length, **ROW} for length in (1, 16, "auto")]
    tables = report.tables({
        "model": "Qwen3.5-0.8B-a-long-name.gguf", "type": "q4_k_m", "n_generated": 256, "threads": 64, "accept": 0.7,
        "drafter": "mtp", "draft_vocab": 32768, "plain_tps": 123.45, "upstream_plain_tps": 123.45, "ours": rows,
        "upstream": rows, "sampled": rows[0], "chat": rows[0], "steps": steps, "prompts": prompts,
        "lookup": rows[0], "upstream_lookup": [],
    })  # fmt: skip
    return Group(*tables)


def evaluate() -> Table:
    return evaluation_report.table({
        "model": "model.gguf", "draft": "draft.gguf", "n_draft": 16, "threads": 64,
        "overall": SCORE, "categories": {"a category": SCORE, "chat": SCORE},
        **{key: {"overall": SCORE, "categories": {"chat": SCORE}} for key in ("default", "lookup")},
    })  # fmt: skip


def demo() -> Table:
    one = Comparison("q4_k_m", "EAGLE-3", "t", "d", True, True, 20, 0.98, 3.21, [0.98] * 4, 2770.0, 1453.0)
    return DemoResult("?", "!", (one, one)).table()


@pytest.mark.parametrize("make", [bench, evaluate, demo])
def test_tables_fit(make: object) -> None:
    out = io.StringIO()
    assert callable(make)
    Console(file=out, width=80).print(make())
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in out.getvalue()
    text = out.getvalue()
    digits = {
        bench: ("1234.56", "0.987", "12.34"),
        evaluate: ("122880", "12.34", "0.98"),
        demo: ("3.21", "98%"),
    }
    assert all(value in text for value in digits[make])


@pytest.mark.parametrize(
    ("temperature", "draft_sampling", "is_compared"),
    [(0.0, "match", True), (0.8, "match", True), (0.8, "rejection", False), (0.0, "rejection", True)],
)
def test_only_rejection_sampling_may_change_the_text(
    temperature: float, draft_sampling: str, *, is_compared: bool
) -> None:
    text = evaluation_report.summary({"temperature": temperature, "draft_sampling": draft_sampling, "overall": SCORE})
    assert ("480 of 480 answers are identical" in text) == is_compared


def test_keys_of_a_file_fit(tmp_path: Path) -> None:
    description = describe(write_target(tmp_path / "target.gguf"))
    lines = render(description, width=80).splitlines()[1:]
    assert max(map(len, lines)) <= 80
    assert any(line.endswith("…") for line in lines)
    assert len(lines) == len(render(description, width=200).splitlines()[1:])


def test_type_and_weights_of_a_file(tmp_path: Path) -> None:
    description = describe(write_target(tmp_path / "target.gguf"))
    stored = sum(math.prod(tensor["shape"]) for tensor in description["tensors"])
    assert (description["file_type"], description["n_weights"]) == ("F32", stored)  # of most weights
    assert f": qwen35, F32, {stored / 1e3:.3g} K weights in " in render(description).splitlines()[0]
    for stated, name in ((7, "Q8_0"), (15 | GUESSED, "Q4_K_M"), (32, "BF16"), (9999, "F32")):
        header = read_model(tmp_path / "target.gguf")[0]
        header.keys["general.file_type"] = stated
        assert file_type([header]) == name


def test_sizes_keep_their_digits() -> None:
    assert [console.size(n) for n in (104_858, 6_700_000, 1 << 30)] == ["0.1 MiB", "6.4 MiB", "1.0 GiB"]
