"""Kullback-Leibler divergence of quantized models, on the demo target."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from divergence import compare, log_softmax, windows
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.demo.run import HELD_OUT, TARGET
from llama_eagle.sessions.models import Model
from llama_eagle.sessions.text import Tokenizer

pytestmark = pytest.mark.native

ROOT = Path(__file__).parents[2]
STUDY, PAGE = ROOT / "bench/studies/divergence.py", ROOT / "docs/quantization.md"


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("divergence") / "bf16.gguf"
    convert_target(TARGET, path, TargetOptions(outtype="bf16"))
    return path


def test_log_softmax_of_large_logits() -> None:
    assert np.exp(log_softmax(np.array([[1000.0, 1000.0], [-1000.0, 0.0]]))) == pytest.approx(
        np.array([[0.5, 0.5], [0.0, 1.0]])
    )


def test_a_model_does_not_differ_from_itself(reference: Path) -> None:
    with Model(reference) as model:
        tokens = Tokenizer(model).encode("Django comes with a lightweight web server. " * 40)
    found = compare(list(windows(reference, tokens, 1)), reference, tokens, 1)
    assert (found.n_tokens, found.mean, found.same_top) == (len(tokens), 0.0, 1.0)
    assert len(tokens) > 256  # more than one window


def test_the_table_of_the_page_is_measured(reference: Path) -> None:
    """docs/quantization.md: its figures of two types, on the text that it names."""
    command = [sys.executable, STUDY, reference, "--text", HELD_OUT, "--json", "q8_0", "q4_k_m"]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["q8_0"]["same_top"] > found["q4_k_m"]["same_top"]
    page = PAGE.read_text().partition("\n## Drafts\n")[0]
    rows = re.findall(r"^\| (\w+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) % \|$", page, re.MULTILINE)
    table = {name: tuple(map(float, figures)) for name, *figures in rows}
    for name, result in found.items():
        size, divergence, same_top = table[name]
        assert result["n_bytes"] / 1e6 == pytest.approx(size, rel=0.01)
        assert result["mean"] == pytest.approx(divergence, rel=0.05)
        assert 100 * result["same_top"] == pytest.approx(same_top, abs=1)
