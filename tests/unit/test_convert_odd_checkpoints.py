"""Targets as people have them: edited configurations, leftovers of training tools, quantized and mixed weights."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from fixtures.eagle3_checkpoints import DraftSpec, make_draft
from fixtures.targets import HYBRID, make_target
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from llama_eagle.convert.source import open_checkpoint
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.errors import ConfigError, ConversionError, EagleError
from safetensors.torch import load_file, save_file

State = dict[str, torch.Tensor]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    families = ("qwen3", "qwen2", "qwen3moe", "llama3", "qwen35-text")
    return {f: make_target(f, tmp_path_factory.mktemp(f), num_hidden_layers=4, mtp=f in HYBRID) for f in families}


@pytest.fixture
def copy(originals: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    return lambda family: Path(shutil.copytree(originals[family], tmp_path / "in"))


def edit(folder: Path, change: Callable[[dict[str, Any]], object], file: str = "config.json") -> None:
    data = json.loads((folder / file).read_text())
    change(data)
    (folder / file).write_text(json.dumps(data))


def edit_state(folder: Path, change: Callable[[State], object]) -> None:
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def read(folder: Path, outtype: str = "bf16") -> tuple[dict[str, Any], dict[str, Any]]:
    """Convert; return the keys without the architecture and the tensors."""
    path = folder.parent / "out.gguf"
    report = convert_target(folder, path, TargetOptions(outtype=outtype))
    reader = gguf.GGUFReader(path)
    keys = {name.removeprefix(f"{report.arch}."): field.contents() for name, field in reader.fields.items()}
    return keys, {tensor.name: tensor for tensor in reader.tensors}


def refuses(folder: Path, message: str, error: type[EagleError] = ConfigError, **options: Any) -> None:
    with pytest.raises(error, match=message) as caught:
        convert_target(folder, folder.parent / "out.gguf", TargetOptions(outtype="bf16", **options))
    assert "\n" not in str(caught.value)
    assert not list(folder.parent.glob("*.gguf")) + list(folder.parent.glob(".*"))


@pytest.mark.parametrize("split_max_size", [0, 100_000])
def test_a_model_that_check_refuses_is_not_written(split_max_size: int, copy: Callable[[str], Path]) -> None:
    folder = copy("qwen3moe")
    edit(folder, lambda config: config.update(num_experts_per_tok=99))
    message = "its configuration describes a model that cannot run: 99 of 4 experts"
    refuses(folder, message, ConversionError, split_max_size=split_max_size)


# --- config.json -------------------------------------------------------------------------------------------------


def test_rope_scaling_overlays_rope_parameters(copy: Callable[..., Path]) -> None:
    folder = copy("qwen3")
    edit(folder, lambda c: c.update(rope_scaling={**YARN, "type": "yarn"}))
    keys = read(folder)[0]
    assert (keys["rope.scaling.type"], keys["rope.scaling.factor"]) == ("yarn", 4.0)
    assert keys["rope.freq_base"] == 1e6
    edit(folder, lambda c: c.update(rope_scaling={"type": "linear", "factor": 2.0}))
    assert read(folder)[0]["rope.scaling.type"] == "linear"
    edit(folder, lambda c: c.update(rope_scaling={}))
    assert "rope.scaling.type" not in read(folder)[0]


def test_yarn_without_a_length_scales_the_configured_context(copy: Callable[..., Path]) -> None:
    folder = copy("qwen3")
    edit(folder, lambda c: c.update(rope_parameters={"rope_type": "yarn", "rope_theta": 1e6, "factor": 2.0}))
    assert read(folder)[0]["rope.scaling.original_context_length"] == 4096


def test_a_magnitude_of_yarn_is_relative_to_the_usual_one(copy: Callable[..., Path]) -> None:
    folder = copy("qwen3")
    edit(folder, lambda c: c.update(rope_parameters={**YARN, "rope_theta": 1e6, "attention_factor": 1.5}))
    usual = 1 + 0.1 * math.log(4)
    assert read(folder)[0]["rope.scaling.attn_factor"] == pytest.approx(1.5 / usual)
    edit(folder, lambda c: c["rope_parameters"].update(attention_factor=usual))
    assert "rope.scaling.attn_factor" not in read(folder)[0]


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "qwen3moe"])
def test_llama3_scaling_is_refused_where_the_graph_has_none(family: str, copy: Callable[..., Path]) -> None:
    folder = copy(family)
    llama3 = {"rope_type": "llama3", "rope_theta": 1e6, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    edit(folder, lambda c: c.update(rope_parameters=llama3))
    refuses(folder, "'llama3' is not supported for this architecture")


@pytest.mark.parametrize("family", ["qwen3", "llama3"])
def test_partial_rotation_is_refused_where_the_graph_has_none(family: str, copy: Callable[..., Path]) -> None:
    folder = copy(family)
    edit(folder, lambda c: c["rope_parameters"].update(partial_rotary_factor=1.0))
    read(folder)
    edit(folder, lambda c: c["rope_parameters"].update(partial_rotary_factor=0.5))
    (folder.parent / "out.gguf").unlink()
    refuses(folder, "partial_rotary_factor")


def test_hybrids_rotate_a_quarter_if_nothing_is_stated(copy: Callable[..., Path]) -> None:
    folder = copy("qwen35-text")
    edit(folder, lambda c: [c.pop("partial_rotary_factor", None), c["rope_parameters"].pop("partial_rotary_factor")])
    assert read(folder)[0]["rope.dimension_count"] == 16


WINDOWS: dict[str, tuple[dict[str, Any], bool]] = {
    "unused": ({"use_sliding_window": False, "sliding_window": 64}, True),
    "above all layers": ({"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 4}, True),
    "of the whole context": ({"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 0}, True),
    "null": ({"use_sliding_window": True, "sliding_window": None}, True),
    "in no layer": ({"use_sliding_window": True, "sliding_window": 64, "layer_types": ["full_attention"] * 4}, True),
    "in a layer": ({"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 3}, False),
    "in all layers": (
        {"use_sliding_window": True, "sliding_window": 64, "layer_types": ["sliding_attention"] * 4},
        False,
    ),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_only_a_sliding_window_that_matters_is_refused(name: str, copy: Callable[..., Path]) -> None:
    fields, fits = WINDOWS[name]
    folder = copy("qwen3")
    edit(folder, lambda c: [c.pop("layer_types", None), c.update(fields)])
    if fits:
        read(folder)
    else:
        refuses(folder, "max_position_embeddings 64")


def test_experts_without_a_stated_normalization_are_refused(copy: Callable[..., Path]) -> None:
    folder = copy("qwen3moe")
    edit(folder, lambda c: c.pop("norm_topk_prob"))
    refuses(folder, "norm_topk_prob is missing")


def test_a_byte_order_mark_is_no_fault(copy: Callable[..., Path]) -> None:
    folder = copy("qwen3")
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_bytes(b"\xef\xbb\xbf" + (folder / name).read_bytes())
    read(folder)


@pytest.mark.parametrize("text", ['{"top_k": 1e400}', '{"temperature": NaN}', '{"top_p": "0.9"}', '{"top_p": 1e30}'])
def test_sampling_defaults_that_are_no_numbers_are_refused(text: str, copy: Callable[..., Path]) -> None:
    folder = copy("qwen3")
    (folder / "generation_config.json").write_text(text)
    refuses(folder, "generation_config.json: .* finite number")


def test_names_of_folders(copy: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copy("qwen3")
    names = {"models--org--a-b/snapshots/" + "0" * 40: "a-b", "zwei Wörter": "zwei Wörter"}
    if os.name == "posix":
        names[os.fsdecode(b"lat\xf6n")] = "lat\ufffdn"
    for name, expected in names.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        folder = folder.rename(tmp_path / name)
        convert_target(folder, tmp_path / "out.gguf", TargetOptions(outtype="bf16"))
        assert gguf.GGUFReader(tmp_path / "out.gguf").fields["general.name"].contents() == expected
    (folder / "sub").mkdir()
    monkeypatch.chdir(folder / "sub")
    convert_target("..", tmp_path / "out.gguf", TargetOptions(outtype="bf16"))
    assert gguf.GGUFReader(tmp_path / "out.gguf").fields["general.name"].contents() == expected


# --- weights -----------------------------------------------------------------------------------------------------


def test_biases_of_attention(copy: Callable[..., Path]) -> None:
    folder = copy("qwen3")
    bias = torch.randn(64)
    edit_state(folder, lambda state: state.update({"model.layers.1.self_attn.v_proj.bias": bias}))
    assert read(folder)[1]["blk.1.attn_v.bias"].data.tolist() == bias.tolist()


def test_stored_frequencies_are_dropped(copy: Callable[..., Path]) -> None:
    folder = copy("llama3")
    names = ("model.rotary_emb.inv_freq", "model.layers.0.self_attn.rotary_emb.inv_freq")
    edit_state(folder, lambda state: state.update({name: torch.ones(16) for name in names}))
    read(folder)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_no_numbers_are_refused(value: float, copy: Callable[..., Path]) -> None:
    folder = copy("qwen35-text")
    edit_state(folder, lambda state: state["lm_head.weight"].__setitem__((3, 4), value))
    refuses(folder, "output.weight: it contains infinities or NaNs", ConversionError)


def test_auto_keeps_the_type_of_most_weights(copy: Callable[..., Path]) -> None:
    folder = copy("qwen3")
    edit_state(folder, lambda state: state.update({"lm_head.weight": state["lm_head.weight"].float()}))
    tensors = read(folder, "auto")[1]
    assert tensors["blk.0.ffn_up.weight"].tensor_type.name == "BF16"
    edit_state(folder, lambda state: state.update({name: tensor.float() for name, tensor in state.items()}))
    assert read(folder, "auto")[1]["blk.0.ffn_up.weight"].tensor_type.name == "F32"


def test_other_files_beside_the_weights(copy: Callable[..., Path]) -> None:
    """Mistral's own format and the optimizer of accelerate have the suffixes of weights."""
    folder = copy("qwen3")
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    save_file(state, folder / "consolidated.safetensors")
    expected = read(folder)[1].keys()
    for file in folder.glob("*.safetensors"):
        file.unlink()
    torch.save(state, folder / "pytorch_model-00001-of-00001.bin")
    torch.save({"state": {}, "param_groups": []}, folder / "optimizer.bin")
    assert read(folder)[1].keys() == expected


def test_a_quantization_that_no_weight_has_is_ignored(copy: Callable[..., Path]) -> None:
    """A merged QLoRA fine-tune keeps the configuration of its base."""
    folder = copy("qwen3")
    edit(folder, lambda c: c.update(quantization_config={"quant_method": "hqq"}))
    read(folder)
    name = "model.layers.0.mlp.up_proj.weight"
    edit_state(folder, lambda state: state.update({name: torch.zeros(3072, 1, dtype=torch.uint8)}))
    (folder.parent / "out.gguf").unlink()
    refuses(folder, "quantized with 'hqq'")


def test_an_algorithm_in_a_file_of_modelopt_is_named(copy: Callable[..., Path]) -> None:
    folder = copy("qwen3")
    name = "model.layers.0.mlp.up_proj.weight"
    edit_state(folder, lambda state: state.update({name: torch.zeros(96, 32, dtype=torch.uint8)}))
    (folder / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "NVFP4_SVD"}}')
    refuses(folder, "NVFP4_SVD")


CONFIGS = (
    {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {"0": {"weights": {"num_bits": 8}}},
    },
    None,
)


@pytest.mark.parametrize("config", CONFIGS)
def test_int8_equals_the_values_it_means(config: dict[str, Any] | None, copy: Callable[..., Path]) -> None:
    folder = copy("qwen3")
    name = "model.layers.2.self_attn.q_proj.weight"
    codes = torch.randint(-128, 128, (128, 64), dtype=torch.int8)
    scale = torch.rand(128, 1).bfloat16()
    edit_state(folder, lambda state: state.update({name: codes, f"{name}_scale": scale}))
    edit(folder, lambda c: c.update(quantization_config=config))
    found = read(folder, "f32")[1]["blk.2.attn_q.weight"].data
    assert (found == (codes.float() * scale.float()).numpy()).all()


def test_scales_of_an_fp8_cache_are_dropped(copy: Callable[..., Path]) -> None:
    folder = copy("qwen3")
    prefix = "model.layers.0.self_attn."
    names = ("k_scale", "v_scale", "k_proj.k_scale", "v_proj.v_scale", "k_proj.output_scale")
    edit_state(folder, lambda state: state.update({prefix + name: torch.ones(1) for name in names}))
    assert not [name for name in read(folder)[1] if "scale" in name]


def test_block_structure_as_text(copy: Callable[..., Path]) -> None:
    folder = copy("qwen3")
    weights = {"num_bits": 8, "type": "float", "block_structure": "32x32"}
    groups = {"group_0": {"weights": weights}}
    config = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": groups}
    edit(folder, lambda c: c.update(compression_config=config))
    name = "model.layers.2.self_attn.q_proj.weight"
    codes, scale = torch.ones(128, 64).to(torch.float8_e4m3fn), torch.rand(4, 2)
    edit_state(folder, lambda state: state.update({name: codes, f"{name}_scale": scale}))
    found = read(folder, "f32")[1]["blk.2.attn_q.weight"].data
    assert (found == scale.repeat_interleave(32, 0).repeat_interleave(32, 1).numpy()).all()
    assert open_checkpoint(folder).config["compression_config"] == config


# --- as targets of drafts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lm_head.weight", "lm_head.qweight"])
def test_the_rows_of_a_quantized_head_are_not_replaced_by_embeddings(name: str, copy: Callable[..., Path]) -> None:
    folder = copy("qwen3")
    draft = make_draft(folder.parent / "draft", DraftSpec(head=False))
    codes = torch.ones(512, 64).to(torch.float8_e4m3fn)
    edit_state(folder, lambda state: [state.pop("lm_head.weight"), state.update({name: codes})])
    with pytest.raises(ConversionError, match=f"{name} is quantized"):
        convert_draft(draft, folder, folder.parent / "out.gguf", DraftOptions(share_head=True, aux_layers=(1, 2, 3)))
    assert not (folder.parent / "out.gguf").exists()


def test_scales_of_a_draft_in_the_names_of_modelopt_are_dropped(copy: Callable[..., Path]) -> None:
    folder = copy("qwen3")
    draft = make_draft(folder.parent / "draft", DraftSpec())
    names = ("k_proj.k_scale", "v_proj.v_scale", "k_proj.output_scale", "k_scale")
    edit_state(draft, lambda state: state.update({f"midlayer.self_attn.{name}": torch.ones(1) for name in names}))
    report = convert_draft(draft, folder, folder.parent / "out.gguf", DraftOptions(aux_layers=(1, 2, 3)))
    assert sum("cache" in row.note.lower() for row in report.tensors) == 4
