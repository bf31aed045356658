"""Our GGUF files against those of llama.cpp's own converter: the same keys, the same tensors, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures import upstream
from fixtures.command import llama_eagle
from fixtures.dflash import CASES, make_dflash
from fixtures.targets import (
    FAMILIES,
    HYBRID,
    fuse_experts,
    make_reranker,
    make_target,
    store_experts_in_out,
    store_fp8,
)
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from llama_eagle.convert.targets import TargetOptions, convert_target, convert_vision
from safetensors.torch import load_file, save_file

pytestmark = pytest.mark.slow

# exp and the llama3 frequency factors differ in the last place between libraries.
CLOSE = ("ssm_a", "rope_freqs.weight")
VISION = [family for family, entry in FAMILIES.items() if entry[4] is not None]


def make(family: str, folder: Path, **more: object) -> Path:
    make_target(family, folder, seed=4, mtp=family in HYBRID, **more)
    if family == "qwen3vlmoe":  # llama.cpp's converter knows the published layout only
        store_experts_in_out(folder)
    return folder


def compare(folder: Path, family: str, outtype: str, *more: str, ours_alone: tuple[str, ...] = ()) -> None:
    ours, theirs = folder / "ours.gguf", folder / "theirs.gguf"
    mtp, only = "--no-mtp" not in more, "--mtp" in more
    convert_target(folder, ours, TargetOptions(outtype=outtype, mtp=mtp, mtp_only=only))
    upstream.convert(folder, theirs, outtype, FAMILIES[family][2], *more)
    assert upstream.differences(ours, theirs, close=CLOSE) == list(ours_alone)


@pytest.mark.parametrize("family", list(FAMILIES))
def test_f32(family: str, tmp_path: Path) -> None:
    compare(make(family, tmp_path), family, "f32")


@pytest.mark.parametrize("outtype", ["bf16", "f16", "q8_0"])
@pytest.mark.parametrize("family", ["qwen35", "qwen35moe", "qwen3vlmoe", "llama3"])
def test_other_types(family: str, outtype: str, tmp_path: Path) -> None:
    compare(make(family, tmp_path), family, outtype)


@pytest.mark.parametrize("family", ["qwen35", "qwen3next"])
def test_without_mtp(family: str, tmp_path: Path) -> None:
    compare(make(family, tmp_path), family, "bf16", "--no-mtp")


@pytest.mark.parametrize("outtype", ["f32", "bf16", "q8_0"])
@pytest.mark.parametrize("family", HYBRID)
def test_mtp_alone(family: str, outtype: str, tmp_path: Path) -> None:
    compare(make(family, tmp_path), family, outtype, "--mtp")


def test_fused_experts(tmp_path: Path) -> None:
    folder = make("qwen35moe", tmp_path)
    fuse_experts(folder)
    compare(folder, "qwen35moe", "bf16")


@pytest.mark.parametrize("family", ["qwen3", "qwen35moe"])
def test_fp8(family: str, tmp_path: Path) -> None:
    folder = make(family, tmp_path)
    store_fp8(folder, block=32)
    compare(folder, family, "bf16")


def test_tied_embeddings(tmp_path: Path) -> None:
    compare(make("qwen35", tmp_path, tie_word_embeddings=True), "qwen35", "bf16")


def test_equal_key_and_value_heads(tmp_path: Path) -> None:
    compare(make("qwen35", tmp_path, linear_num_key_heads=4), "qwen35", "f32")


@pytest.mark.parametrize("pooling", [{"pooling_mode_lasttoken": True}, {"pooling_mode": "mean"}])
def test_pooling_of_sentence_transformers(pooling: dict[str, Any], tmp_path: Path) -> None:
    folder = make("qwen3", tmp_path)
    (folder / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.Pooling", "path": "1_P"}]))
    (folder / "1_P").mkdir()
    (folder / "1_P/config.json").write_text(json.dumps(pooling))
    compare(folder, "qwen3", "bf16")


@pytest.mark.parametrize(
    ("family", "outtype", "tied"),
    [("qwen3", "bf16", True), ("qwen3", "q8_0", False), ("qwen3vl", "q8_0", True), ("qwen3vl", "bf16", False)],
)
def test_rerankers(family: str, outtype: str, tied: bool, tmp_path: Path) -> None:
    compare(make_reranker(family, tmp_path, tie_word_embeddings=tied), family, outtype)


def test_float16_source(tmp_path: Path) -> None:
    compare(make("qwen3", tmp_path, dtype="float16"), "qwen3", "f16")


def test_yarn(tmp_path: Path) -> None:
    rope = {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
    }
    compare(make("qwen3", tmp_path, rope_parameters=rope), "qwen3", "bf16")


@pytest.mark.parametrize("outtype", ["f16", "bf16", "q8_0"])
@pytest.mark.parametrize("family", VISION)
def test_vision_tower(family: str, outtype: str, tmp_path: Path) -> None:
    folder = make_target(family, tmp_path, seed=5)
    ours, theirs = tmp_path / "ours.gguf", tmp_path / "theirs.gguf"
    convert_vision(folder, ours, TargetOptions(outtype=outtype))
    upstream.convert(folder, theirs, outtype, FAMILIES[family][2], "--mmproj")
    assert upstream.differences(ours, theirs) == []


def test_biases(tmp_path: Path) -> None:
    compare(make("llama3", tmp_path, attention_bias=True, mlp_bias=True), "llama3", "bf16")


def edit(folder: Path, file: str, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads((folder / file).read_text())
    change(data)
    (folder / file).write_text(json.dumps(data))


def test_a_tokenizer_that_appends_another_end_token(tmp_path: Path) -> None:
    folder = make("qwen3", tmp_path)
    end = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    single = [{"Sequence": {"id": "A", "type_id": 0}}, end]
    known = {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [480], "tokens": ["<|endoftext|>"]}}
    pair = [*single, {"Sequence": {"id": "B", "type_id": 0}}, end]
    added = {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": known}
    edit(folder, "tokenizer.json", lambda t: t.update(post_processor=added))
    compare(folder, "qwen3", "bf16", ours_alone=("key tokenizer.ggml.add_bos_token",))


def test_integers_of_compressed_tensors(tmp_path: Path) -> None:
    folder = make("qwen3", tmp_path)
    state = load_file(folder / "model.safetensors")
    for name in [name for name in state if "_proj.weight" in name]:
        scale = state[name].float().abs().amax(1, keepdim=True) / 127
        state[name] = (state[name].float() / scale).round().to(torch.int8)
        state[f"{name}_scale"] = scale.bfloat16()
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    weights = {"num_bits": 8, "type": "int", "strategy": "channel"}
    config = {"quant_method": "compressed-tensors", "format": "int-quantized"}
    config["config_groups"] = {"group_0": {"weights": weights, "targets": ["Linear"]}}
    edit(folder, "config.json", lambda c: c.update(quantization_config=config))
    compare(folder, "qwen3", "bf16")


GEMMA = "dspark-gemma"  # no Gemma 4 has M-RoPE
DRAFTS = [(case, "qwen35", "bf16") for case in CASES if case != GEMMA]
DRAFTS += [
    (case, "qwen3", "q8_0") for case in ("dflash", "dflash2", "dspark-speculators", GEMMA)
]  # a target without M-RoPE


@pytest.mark.parametrize(("case", "family", "outtype"), DRAFTS)
def test_dflash(case: str, family: str, outtype: str, tmp_path: Path) -> None:
    folder, target = make_dflash(tmp_path / "draft", CASES[case]), make(family, tmp_path / "target")
    ours, theirs = tmp_path / "ours.gguf", tmp_path / "theirs.gguf"
    convert_draft(folder, target, ours, DraftOptions(outtype=outtype))
    upstream.convert(folder, theirs, outtype, FAMILIES[family][2], "--target-model-dir", str(target))
    found = upstream.differences(ours, theirs)
    if case == GEMMA:  # its head is a copy of the target's, which ours leaves out
        found = [each for each in found if "output.weight" not in each and "general.size_label" not in each]
    assert found == []


@pytest.mark.native
@pytest.mark.parametrize("case", ["dflash2-zlab", "dspark-speculators"])
def test_a_draft_of_their_converter_runs_here(case: str, tmp_path: Path) -> None:
    """`check` accepts the file, and the text is that of plain decoding."""
    from llama_eagle import EagleLlama

    folder, target = make_dflash(tmp_path / "draft", CASES[case]), make("qwen35", tmp_path / "target")
    convert_target(target, tmp_path / "target.gguf", TargetOptions(outtype="q8_0"))
    upstream.convert(folder, tmp_path / "draft.gguf", "q8_0", FAMILIES["qwen35"][2], "--target-model-dir", str(target))
    checked = llama_eagle("check", str(tmp_path / "target.gguf"), str(tmp_path / "draft.gguf"))
    assert checked.code == 0, checked.stderr
    texts = []
    for draft in ("none", str(tmp_path / "draft.gguf")):
        options = {"n_ctx": 256, "n_threads": 1, "verbose": False}
        options |= {} if draft == "none" else {"n_draft": 4, "lookup": False}
        with EagleLlama(str(tmp_path / "target.gguf"), draft=draft, **options) as llm:
            texts.append(llm.create_completion("a b c", max_tokens=40, temperature=0)["choices"][0]["text"])
            assert (llm.speculative_totals.n_drafted > 0) == (draft != "none")
    assert texts[0] == texts[1]
