"""Families converted by llama.cpp's converter against transformers: equal logits, or refused by name.

Each checkpoint is converted in a fork (fixtures/converter.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from fixtures.converter import imported_converter, run_fork
from fixtures.families import FAMILIES, edit, make
from fixtures.targets import store_fp8
from llama_eagle.convert.source import open_checkpoint
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.convert.upstream import check, convert
from llama_eagle.convert.upstream.compared import sample_deviation
from llama_eagle.errors import ConversionError, EagleError
from llama_eagle.native.trials.decode import decode_logits
from llama_eagle.sessions.same_tokens import compare_pieces, compare_tokens

pytestmark = [pytest.mark.slow, pytest.mark.native]

# Largest difference of logits in the median row, relative to the largest logit: llama.cpp reads GELU from a table.
EXACT, ROUNDED = 1e-4, 5e-3
REFUSED = {  # family, form -> why
    ("exaone4", "saved"): "logits differ.* sliding windows to models of 64 blocks alone",
    ("exaone4", "published"): "logits differ.* sliding windows to models of 64 blocks alone",
    ("phimoe", "saved"): "logits differ.* where this model has LayerNorm and SparseMixer",
    ("phimoe", "published"): "logits differ.* where this model has LayerNorm and SparseMixer",
    ("bamba", "saved"): "logits differ",
    ("bamba", "published"): "logits differ",
    ("solaropen", "saved"): "logits differ",
    ("solaropen", "published"): "logits differ",
}


@pytest.fixture(scope="module", autouse=True)
def imported() -> Iterator[None]:
    with imported_converter():
        yield


@pytest.mark.parametrize("form", ["saved", "published"])
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("llama", "qwen3")])
def test_a_family_is_right_or_refused(family: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if FAMILIES[family][2] == "spm":
        pytest.importorskip("sentencepiece")
    for module in (convert, check):
        monkeypatch.setattr(module, "run_child", run_fork)
    folder, out = make(family, tmp_path / "model", published=form == "published"), tmp_path / "out.gguf"
    options = TargetOptions(check_tokenizer=compare_tokens, check_pieces=compare_pieces)
    if reason := REFUSED.get((family, form)):
        with pytest.raises(EagleError, match=reason):
            convert_target(folder, out, options)
        assert [path.name for path in tmp_path.iterdir()] == ["model"]
        return
    report = convert_target(folder, out, options)
    assert (report.way, report.warnings) == ("llama.cpp", [])
    limit = check.SPARSE if family == "gemma3n" else EXACT if is_exact(family) else ROUNDED
    assert median_difference(folder, family, out) < limit
    assert check.check_logits(open_checkpoint(folder)) == []  # kept: no other fork


def is_exact(family: str) -> bool:
    inexact = ("bloom", "gemma", "gptoss", "phi", "gptneox", "falcon", "starcoder2", "nemotronh")
    return not family.startswith(inexact) or family in ("falconh1", "phi3")


def median_difference(folder: Path, family: str, out: Path) -> float:
    tokens = torch.randint(5, 470, (40,), generator=torch.Generator().manual_seed(3))
    kind = getattr(transformers, f"{FAMILIES[family][0]}ForCausalLM")
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode(), sample_deviation():
        expected = model(input_ids=tokens[None], use_cache=False).logits[0].numpy()
    found = decode_logits(out, tokens.tolist())[:, : expected.shape[1]]
    return float(np.median(np.abs(found - expected).max(1)) / np.abs(expected).max())


def test_a_window_that_llama_cpp_ignores_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mistral 7B 0.1, Phi-3-mini and StarCoder 2 have one; one as long as the longest text changes nothing."""
    monkeypatch.setattr(check, "run_child", run_fork)
    folder = make("starcoder2", tmp_path / "model")
    for window, warnings in ((300, 1), (512, 0)):
        edit(folder / "config.json", {"sliding_window": window, "rope_theta": 20003.0})  # not kept by another test
        found = check.check_logits(open_checkpoint(folder))
        assert len(found) == warnings
        assert all("llama.cpp ignores its sliding window, so texts of more than 300 tokens" in text for text in found)


def test_quantized_weights_are_read_by_our_decoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (convert, check):
        monkeypatch.setattr(module, "run_child", run_fork)
    made = {}
    for name, plain in (("plain", True), ("fp8", False)):
        folder = make("granite", tmp_path / name)
        store_fp8(folder, block=32, dequantized=plain)
        convert_target(folder, tmp_path / f"{name}.gguf", TargetOptions(outtype="f32"))
        made[name] = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / f"{name}.gguf").tensors}
    assert made["plain"].keys() == made["fp8"].keys()
    assert all(np.array_equal(made["plain"][name], made["fp8"][name]) for name in made["plain"])


def test_a_wrong_rule_of_the_converter_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSeek V3 as transformers 5 saves it, without the gate's function: only its logits are wrong."""
    monkeypatch.setattr(check, "run_child", run_fork)
    monkeypatch.setattr("llama_eagle.convert.upstream.hparams._RULES", {})
    folder = make("deepseek3", tmp_path / "model", seed=5)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rope_theta": 20001.0}))  # not kept by another test
    with pytest.raises(ConversionError, match="logits differ"):
        check.check_logits(open_checkpoint(folder))
