"""EleutherAI's lm-evaluation-harness, unchanged and pinned, against `serve`: its values are those of transformers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from fixtures.serving import serve
from fixtures.targets import FAMILIES, make_target
from llama_eagle.convert.targets import TargetOptions, convert_target

pytestmark = [pytest.mark.native, pytest.mark.slow]

CLIENT = Path(__file__).parent / "clients" / "log_likelihoods.py"
PACKAGE = "lm-eval[api]==0.4.13"
PAIRS = [
    ["The quick brown fox jumps over", " the lazy dog."],
    ["A draft proposes tokens; the target verifies them", " in one batch"],
    ["Das Pferd frisst", " keinen Gurkensalat. 你好，世界"],
]


def install(folder: Path) -> None:
    """Install the harness next to this environment, which has transformers."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), PACKAGE]
    subprocess.run(command, check=True)


def log_likelihood(model: Any, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    """Return the sum over a continuation, and whether it is the likeliest one."""
    with torch.no_grad():
        logits = model(torch.tensor([context + continuation])).logits[0, len(context) - 1 : -1]
    wanted = torch.tensor(continuation)
    values = logits.log_softmax(-1).gather(1, wanted[:, None])
    return float(values.sum()), bool((logits.argmax(-1) == wanted).all())


def test_log_likelihoods_are_those_of_transformers(tmp_path: Path) -> None:
    install(tmp_path / "packages")
    folder = make_target("qwen3", tmp_path / "target")
    convert_target(str(folder), folder / "target.gguf", TargetOptions(outtype="f32"))
    with serve("-m", folder / "target.gguf", "-d", "none", "-c", 512, "-t", 1, "--parallel", 2) as server:
        done = subprocess.run(
            [sys.executable, CLIENT, server.address, folder],
            input=json.dumps(PAIRS),
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(tmp_path / "packages")},
        )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = getattr(transformers, FAMILIES["qwen3"][1]).from_pretrained(folder, dtype=torch.float32).eval()
    for (context, continuation), (value, is_likeliest) in zip(PAIRS, found["continuations"], strict=True):
        before, both = tokenizer.encode(context), tokenizer.encode(context + continuation)
        expected = log_likelihood(model, both[: len(before)], both[len(before) :])
        assert value == pytest.approx(expected[0], abs=1e-2) and is_likeliest == expected[1]
    for pair, value in zip(PAIRS, found["texts"], strict=True):
        prefix = tokenizer.bos_token_id or tokenizer.eos_token_id
        expected = log_likelihood(model, [prefix], tokenizer.encode("".join(pair)))
        assert value == pytest.approx(expected[0], abs=1e-2)
    assert len(found["generated"]) == 1
