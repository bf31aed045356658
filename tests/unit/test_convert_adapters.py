"""Adapters of peft as GGUF adapters, and merged: their updates are those of a checkpoint to which they were added."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from fixtures.command import assert_one_line_error, llama_eagle
from fixtures.lora import State, add_updates, pair, update_of, write_peft
from fixtures.targets import fuse_experts, make_target, store_fp8
from llama_eagle.convert.adapters import Merge, convert_adapter, read_adapter
from llama_eagle.convert.source import open_checkpoint
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.convert.upstream.convert import convert_by_llama_cpp
from llama_eagle.errors import EagleError, IncompatibleModels
from llama_eagle.gguf.header import read_model
from llama_eagle.gguf.validate.adapters import require_adapter

Values = dict[str, np.ndarray]
SIZES = {"num_hidden_layers": 4, "dtype": "float32"}


def values_of(path: Path) -> Values:
    return {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors}


def converted(folder: Path, changes: Merge | None = None) -> Path:
    path = folder / ("merged.gguf" if changes else "model.gguf")
    if not path.exists():
        checkpoint = open_checkpoint(folder)
        checkpoint.changes = changes
        convert_target(checkpoint, path, TargetOptions(outtype="f32"))
    return path


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target("llama3", tmp_path_factory.mktemp("llama"), **{**SIZES, "num_hidden_layers": 2})


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Experts in two tensors, linear attention, vision encoder, MTP head."""
    folder = make_target("qwen35moe", tmp_path_factory.mktemp("hybrid"), mtp=True, **SIZES)
    fuse_experts(folder)
    return folder


def updates_of(path: Path) -> Values:
    """Return the update of each tensor that a GGUF adapter has, as llama.cpp computes it."""
    found = values_of(path)
    alpha = float(gguf.GGUFReader(path).fields["adapter.lora.alpha"].parts[-1][0])
    updates = {}
    for name in {each[:-7] for each in found}:
        a, b = found[f"{name}.lora_a"], found[f"{name}.lora_b"]
        a, b = (b.T, a) if name == "token_embd.weight" else (a, b)
        updates[name] = alpha / a.shape[-2] * (b @ a)
    return updates


def compare(source: Path, folder: Path, state: State, added: dict[str, torch.Tensor], **settings: Any) -> None:
    """Compare a GGUF adapter and a merged model with the GGUF of a checkpoint to which the same was added."""
    adapter = write_peft(folder / "adapter", state, **settings)
    target, lora = converted(source), folder / "lora.gguf"
    convert_adapter(adapter, target, lora)
    require_adapter(lora, read_model(target)[1])
    changed = Path(shutil.copytree(source, folder / "changed"))
    (changed / "model.gguf").unlink()
    add_updates(changed, added)
    before, after = values_of(target), values_of(converted(changed))
    updates = {name: update for name, update in updates_of(lora).items() if update.any()}
    assert updates.keys() == {name for name, values in after.items() if not np.array_equal(values, before[name])}
    merged = values_of(converted(Path(shutil.copytree(source, folder / "base")), Merge(read_adapter(adapter))))
    for name, values in after.items():
        expected = before[name] + updates[name] if name in updates else before[name]
        np.testing.assert_allclose(expected, values, rtol=0, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(merged[name], values, rtol=0, atol=1e-5, err_msg=name)


def test_scales_ranks_and_rotary_order(llama: Path, tmp_path: Path) -> None:
    """Rank-stabilized, with alphas and ranks of their own; queries and keys are reordered."""
    at, down = "model.layers.0.self_attn", "model.layers.1.mlp.down_proj"
    shapes = {
        f"{at}.q_proj": (128, 64, 4), f"{at}.k_proj": (64, 64, 2), down: (64, 96, 4), "lm_head": (512, 64, 4),
        "model.embed_tokens": (512, 64, 3),
    }  # fmt: skip
    alphas = {**dict.fromkeys(shapes, 8), f"{at}.k_proj": 3, down: 0}
    state = {k: v for i, (name, shape) in enumerate(shapes.items()) for k, v in pair(name, *shape, seed=i).items()}
    added = {
        f"{name}.weight": alphas[name] / shape[2] ** 0.5 * update_of(state, name) for name, shape in shapes.items()
    }
    patterns = {"k_proj": 3, r"model\.layers\.\d\.mlp\.down_proj": 0}
    compare(llama, tmp_path, state, added, use_rslora=True, alpha_pattern=patterns)


@pytest.mark.parametrize("swapped", [False, True])
def test_value_heads_and_experts(swapped: bool, hybrid: Path, tmp_path: Path) -> None:
    """Value heads are reordered. A pair of experts does not name its parameter. peft before 0.19 swapped its parts."""
    at = "model.language_model.layers.0"
    shapes = {
        f"{at}.linear_attn.in_proj_qkv": (256, 64), f"{at}.linear_attn.in_proj_z": (128, 64),
        f"{at}.linear_attn.in_proj_a": (4, 64), f"{at}.linear_attn.out_proj": (64, 128), f"{at}.mlp.gate": (4, 64),
        f"{at}.mlp.shared_expert.up_proj": (32, 64), f"{at}.mlp.shared_expert_gate": (1, 64),
        "model.language_model.layers.3.self_attn.q_proj": (512, 64),
    }  # fmt: skip
    state = {k: v for i, (name, shape) in enumerate(shapes.items()) for k, v in pair(name, *shape, seed=i).items()}
    added = {f"{name}.weight": 2 * update_of(state, name) for name in shapes}
    experts = {f"{at}.mlp.experts.base_layer": ("gate_up_proj", 96, 64), f"{at}.mlp.experts": ("down_proj", 64, 48)}
    for module, (parameter, rows, columns) in experts.items():
        state |= pair(module, *((columns, rows) if swapped else (rows, columns)), rank=4 * 4, seed=columns)
        update = 2 * update_of(state, module, 4)
        added[f"{at}.mlp.experts.{parameter}"] = update.transpose(1, 2) if swapped else update
    compare(hybrid, tmp_path, state, added, peft_version="0.18.1" if swapped else "0.21.2")


def test_experts_one_by_one(hybrid: Path, tmp_path: Path) -> None:
    """As transformers 4 names them, some with another rank, others without a pair."""
    at = "model.language_model.layers.1.mlp.experts"
    shapes = {f"{at}.{e}.{name}_proj": shape for e, name, shape in (
        (0, "gate", (48, 64, 2)), (2, "gate", (48, 64, 4)), (1, "down", (64, 48, 4)))}  # fmt: skip
    state = {k: v for i, (name, shape) in enumerate(shapes.items()) for k, v in pair(name, *shape, seed=i).items()}
    gate_up, down = torch.zeros(4, 96, 64), torch.zeros(4, 64, 48)
    for e, factor in ((0, 4), (2, 2)):
        gate_up[e, :48] = factor * update_of(state, f"{at}.{e}.gate_proj")
    down[1] = 2 * update_of(state, f"{at}.1.down_proj")
    compare(hybrid, tmp_path, state, {f"{at}.gate_up_proj": gate_up, f"{at}.down_proj": down})


def test_a_quantized_base(llama: Path, tmp_path: Path) -> None:
    """Its values are those of the dequantized one, to which the same is added."""
    adapter = Merge(read_adapter(write_peft(tmp_path / "adapter", pair("model.layers.0.self_attn.q_proj", 128, 64))))
    folders = [Path(shutil.copytree(llama, tmp_path / name)) for name in ("codes", "values")]
    for folder in folders:
        (folder / "model.gguf").unlink(missing_ok=True)
        store_fp8(folder, 32, dequantized=folder.name == "values")
    coded, plain = (values_of(converted(folder, adapter)) for folder in folders)
    assert coded.keys() == plain.keys()
    for name, values in plain.items():
        np.testing.assert_allclose(coded[name], values, rtol=0, atol=1e-6, err_msg=name)
    assert not np.array_equal(coded["blk.0.attn_q.weight"], values_of(converted(folders[0]))["blk.0.attn_q.weight"])


# --- what is refused ---------------------------------------------------------------------------------------------

Q = "model.layers.0.self_attn.q_proj"
SOUND = pair(Q, 128, 64)
CONV = {"model.layers.0.linear_attn.conv1d.lora_A.weight": torch.ones(4, 8, 4),
        "model.layers.0.linear_attn.conv1d.lora_B.weight": torch.ones(8, 4, 1)}  # fmt: skip
FAULTS: dict[str, tuple[State, dict[str, Any], str]] = {
    "half a pair": ({f"{Q}.lora_A.weight": torch.ones(4, 64)}, {}, r"the pair of .*lora_A.* is missing \(lora_B\)"),
    "two ranks": ({**SOUND, f"{Q}.lora_B.weight": torch.ones(128, 3)}, {}, "lora_A has 4, lora_B has 3"),
    "NaN": ({**SOUND, f"{Q}.lora_B.weight": torch.full((128, 4), torch.nan)}, {}, "lora_B.weight: it contains inf"),
    "integers": ({**SOUND, f"{Q}.lora_B.weight": torch.ones(128, 4, dtype=torch.int8)}, {}, "dtype I8, expected"),
    "alpha": (SOUND, {"lora_alpha": "8"}, "the alpha of .*q_proj is '8'"),
    "a wider model": (pair(Q, 256, 128), {}, "is for a matrix of 256 x 128, the model has 128 x 64. Give the model"),
    "more layers": (pair("model.layers.7.self_attn.q_proj", 128, 64), {}, "has no matrix for .*layers.7"),
    "a vision encoder": (pair("model.visual.blocks.0.attn.qkv", 8, 8), {}, "is of the vision encoder"),
    "a convolution": (CONV, {}, "has pairs of 3 dimensions"),
    "no tensors": ({}, {}, "contains no tensors"),
    "DoRA": ({**SOUND, f"{Q}.lora_magnitude_vector": torch.ones(128)}, {}, "DoRA .* Merge it: llama-eagle convert"),
    "B biases": ({**SOUND, f"{Q}.lora_B.bias": torch.ones(128)}, {}, r"biases of B .* Merge it: llama-eagle"),
    "trained norm": ({**SOUND, "model.norm.weight": torch.ones(64)}, {}, r"a whole tensor .*norm\.weight.* Merge it"),
    "trained tokens": ({"model.embed_tokens.token_adapter.trainable_tokens_delta": torch.ones(2, 64)}, {},
                       "trained tokens .* with peft"),
    "aLoRA": (SOUND, {"alora_invocation_tokens": [1, 2]}, r"\(aLoRA\).* convert the base model alone"),
    "PiSSA": (SOUND, {"init_lora_weights": "pissa_niter_4"}, r"\(PiSSA\).* with peft"),
    "OLoRA": (SOUND, {"init_lora_weights": "olora"}, r"\(OLoRA\).* with peft"),
    "CorDA": (SOUND, {"init_lora_weights": "corda"}, r"\(CorDA\).* path_initial_model_for_weight_conversion"),
    "repeated layers": (SOUND, {"layer_replication": [[0, 2], [1, 2]]}, "repeated layers"),
    "IA3": (SOUND, {"peft_type": "IA3"}, r"a PEFT adapter \(IA3\).* with peft"),
    "prompts": (SOUND, {"peft_type": "PROMPT_TUNING"}, r"a PEFT adapter \(PROMPT_TUNING\).* base model alone"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_adapters_that_are_refused(fault: str, llama: Path, tmp_path: Path) -> None:
    state, settings, message = FAULTS[fault]
    write_peft(tmp_path / "adapter", state, **settings)
    with pytest.raises(EagleError, match=message) as caught:
        convert_adapter(tmp_path / "adapter", converted(llama), tmp_path / "lora.gguf")
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


@pytest.mark.parametrize("module", ["lm_head", "model.embed_tokens"])
def test_a_shared_output_matrix(module: str, tmp_path: Path) -> None:
    tied = make_target("llama3", tmp_path / "tied", tie_word_embeddings=True, **{**SIZES, "num_hidden_layers": 1})
    adapter = write_peft(tmp_path / "adapter", pair(module, 512, 64))
    target = converted(tied)
    with pytest.raises(IncompatibleModels, match=r"Merge it: llama-eagle convert ADAPTER --merge"):
        convert_adapter(adapter, target, tmp_path / "lora.gguf")
    before, after = values_of(target), values_of(converted(tied, Merge(read_adapter(adapter))))
    changed, other = ("output.weight", "token_embd.weight")[:: 1 if module == "lm_head" else -1]
    np.testing.assert_array_equal(after[other], before["token_embd.weight"])
    update = 2 * update_of(pair(module, 512, 64), module).numpy()
    np.testing.assert_allclose(after[changed], before["token_embd.weight"] + update, atol=1e-5)


def test_the_command(llama: Path, tmp_path: Path) -> None:
    adapter, out = write_peft(tmp_path / "adapter", SOUND), tmp_path / "out.gguf"
    target = converted(llama)
    to_target = ("convert", adapter, "-o", out, "--target")
    assert_one_line_error(llama_eagle(*to_target, llama), 2, "needs the GGUF file of its model")
    assert_one_line_error(llama_eagle(*to_target, target, "--no-mtp"), 2, "does not apply to an adapter")
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut/adapter_config.json").write_text("{}")
    cut = llama_eagle("convert", tmp_path / "cut", "-o", tmp_path / "x.gguf", "--target", target)
    assert_one_line_error(cut, 3, "no adapter (adapter_config.json with adapter_model.safetensors)")
    report = llama_eagle(*to_target, target, "--outtype", "f16", "--json")
    assert report.code == 0, report.stderr
    assert json.loads(report.stdout).items() >= {"kind": "adapter", "n_pairs": 1, "rank": 4, "alpha": 8.0}.items()
    assert {tensor.dtype for tensor in values_of(out).values()} == {np.dtype(np.float16)}
    merge = ("convert", adapter, "-o", tmp_path / "merged.gguf", "--outtype", "f32", "--merge")
    assert_one_line_error(llama_eagle(*merge), 3, "a LoRA adapter, not a model")
    assert llama_eagle(*merge, "--base", llama).code == 0
    merged, next_to = values_of(tmp_path / "merged.gguf"), Path(shutil.copytree(llama, tmp_path / "next"))
    for file in adapter.iterdir():
        shutil.copy(file, next_to)
    assert_one_line_error(llama_eagle("convert", next_to, "-o", tmp_path / "x.gguf"), 3, "--merge converts both")
    assert llama_eagle("convert", next_to, "-o", tmp_path / "x.gguf", "--outtype", "f32", "--merge").code == 0
    assert merged.keys() == values_of(tmp_path / "x.gguf").keys()
    assert all(np.array_equal(values, merged[name]) for name, values in values_of(tmp_path / "x.gguf").items())
    assert not np.array_equal(merged["blk.0.attn_q.weight"], values_of(target)["blk.0.attn_q.weight"])


def test_a_base_of_another_family(llama: Path, tmp_path: Path) -> None:
    """llama.cpp's converter reads it, without the adapter."""
    checkpoint = open_checkpoint(llama)
    checkpoint.changes = Merge(read_adapter(write_peft(tmp_path / "adapter", SOUND)))
    with pytest.raises(EagleError, match=r"which merges no adapter\. Merge it into its base model with peft"):
        convert_by_llama_cpp(checkpoint, tmp_path / "out.gguf", TargetOptions(outtype="f32"))
