"""Targets: layouts that mean the same model give the same file; damaged checkpoints end in an error and no file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import hypothesis
import numpy as np
import pytest
import torch
from fixtures.command import assert_one_line_error, llama_eagle
from fixtures.targets import FAMILIES, HYBRID, fuse_experts, make_target, store_experts_in_out, store_fp8
from hypothesis import strategies as st
from llama_eagle.convert.general import _rounded
from llama_eagle.convert.targets import TargetOptions, convert_target, convert_vision
from llama_eagle.errors import ConfigError, ConversionError, EagleError, UsageError
from safetensors.torch import load_file, save_file

State = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes each checkpoint once; tests copy it."""
    made: dict[str, Path] = {}

    def get(family: str, **more: Any) -> Path:
        key = f"{family} {more}"
        if key not in made:
            made[key] = make_target(family, tmp_path_factory.mktemp(family), seed=6, mtp=family in HYBRID, **more)
        return made[key]

    return get


@pytest.fixture
def copy(originals: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    def get(family: str, name: str = "copy", **more: Any) -> Path:
        return Path(shutil.copytree(originals(family, **more), tmp_path / name))

    return get


def convert(folder: Path, **options: Any) -> bytes:
    """The file that convert_target writes, without its name."""
    path = folder.parent / "out.gguf"
    convert_target(folder, path, TargetOptions(name="x", **{"outtype": "bf16", **options}))
    return path.read_bytes()


def tensors(data: bytes, folder: Path) -> dict[str, Any]:
    path = folder.parent / "read.gguf"
    path.write_bytes(data)
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def edit_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def edit_state(folder: Path, change: Callable[[State], object]) -> None:
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def refuses(folder: Path, message: str, error: type[EagleError] = ConversionError, **options: Any) -> None:
    """The conversion fails with this message, and nothing is left in the output's folder."""
    output = folder.parent / "output"
    output.mkdir(exist_ok=True)
    with pytest.raises(error, match=message) as caught:
        convert_target(folder, output / "out.gguf", TargetOptions(outtype="bf16", **options))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == error.exit_code
    assert not list(output.iterdir())


# --- one model, several layouts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["qwen35moe", "qwen3next", "qwen3moe"])
def test_fused_experts_give_the_same_file(family: str, copy: Callable[..., Path]) -> None:
    folder = copy(family)
    expected = convert(folder)
    fuse_experts(folder)
    assert convert(folder) == expected
    store_experts_in_out(folder)
    assert convert(folder) == expected


@pytest.mark.parametrize("size", [32, 64], ids=["gate_up fits both ways", "down fits both ways"])
def test_layout_of_fused_experts_where_one_shape_is_ambiguous(size: int, copy: Callable[..., Path]) -> None:
    folder = copy("qwen3vlmoe", moe_intermediate_size=size)  # hidden_size is 64
    expected = convert(folder)
    store_experts_in_out(folder)
    assert convert(folder) == expected


def test_shards_give_the_same_file(copy: Callable[..., Path]) -> None:
    folder = copy("qwen35")
    expected = convert(folder)
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(state)
    parts = {f"model-{i + 1:05d}-of-00003.safetensors": names[i::3] for i in range(3)}
    for file, part in parts.items():
        save_file({name: state[name] for name in part}, folder / file, metadata={"format": "pt"})
    weight_map = {name: file for file, part in parts.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert convert(folder) == expected


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model.", ""])
def test_name_prefixes_give_the_same_file(prefix: str, copy: Callable[..., Path]) -> None:
    folder = copy("qwen35-text")
    expected = convert(folder)

    def rename(state: State) -> None:
        for name in [n for n in state if n.startswith("model.")]:
            state[prefix + name.removeprefix("model.")] = state.pop(name)

    edit_state(folder, rename)
    assert convert(folder) == expected


@pytest.mark.parametrize("family", ["qwen35", "qwen3moe"])
def test_fp8_equals_the_values_it_means(family: str, copy: Callable[..., Path]) -> None:
    coded, plain = copy(family), copy(family, "plain")
    store_fp8(coded, block=32)
    store_fp8(plain, block=32, dequantized=True)
    assert convert(coded, outtype="f32") == convert(plain, outtype="f32")
    assert convert(coded, outtype="auto") == convert(plain, outtype="bf16")


def test_fused_fp8_experts(copy: Callable[..., Path]) -> None:
    folder = copy("qwen3vlmoe")
    expected = tensors(convert(folder, outtype="f32"), folder)["blk.2.ffn_up_exps.weight"].data.copy()
    key = "model.language_model.layers.2.mlp.experts.gate_up_proj"

    def encode(state: State) -> None:
        state[key + "_scale_inv"] = torch.full((4, 3, 2), 0.25)
        state[key] = (state[key].float() / 0.25).to(torch.float8_e4m3fn)

    edit_state(folder, encode)
    edit_config(folder, lambda c: c.update(quantization_config={"quant_method": "fp8", "weight_block_size": [32, 32]}))
    found = tensors(convert(folder, outtype="f32"), folder)["blk.2.ffn_up_exps.weight"].data
    assert np.allclose(found, expected, rtol=0.07, atol=1e-3) and not np.array_equal(found, expected)


def test_auto_keeps_the_stored_type(copy: Callable[..., Path]) -> None:
    for dtype, expected in (("bfloat16", "BF16"), ("float16", "F16"), ("float32", "F32")):
        folder = copy("qwen3", dtype, dtype=dtype)
        kinds = {t.tensor_type.name for t in tensors(convert(folder, outtype="auto"), folder).values()}
        assert kinds == {expected, "F32"}


# --- next-token-prediction block ---------------------------------------------------------------------------------


@pytest.mark.parametrize("family", HYBRID)
def test_mtp_block_kept_dropped_and_absent(family: str, copy: Callable[..., Path]) -> None:
    folder = copy(family)
    kept = tensors(convert(folder), folder)
    assert {"blk.8.nextn.eh_proj.weight", "blk.8.attn_q.weight"} <= kept.keys()
    dropped = convert(folder, mtp=False)
    assert not any(name.startswith("blk.8.") for name in tensors(dropped, folder))
    edit_state(folder, lambda state: [state.pop(name) for name in list(state) if name.startswith("mtp.")])
    assert convert(folder) == dropped
    report = convert_target(folder, folder.parent / "r.gguf")
    assert (report.n_layer, report.n_mtp) == (8, 0)


def test_several_or_broken_mtp_blocks_are_refused(copy: Callable[..., Path]) -> None:
    folder = copy("qwen35")
    state = load_file(folder / "model.safetensors")
    block = {name: tensor for name, tensor in state.items() if name.startswith("mtp.layers.0.")}
    more = {name.replace("layers.0", "layers.1"): tensor.clone() for name, tensor in block.items()}
    for changed in ({**state, **more}, {name: state[name] for name in state if name not in block}):
        save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})
        refuses(folder, "--no-mtp")
        convert(folder, mtp=False)


# --- damage ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", list(FAMILIES))
def test_every_required_tensor_is_missed_by_name(family: str, copy: Callable[..., Path]) -> None:
    folder = copy(family)
    state = load_file(folder / "model.safetensors")
    needed = [n for n in state if "visual." not in n and ".layers." not in n and n != "lm_head.weight"]
    needed += [n for n in state if ".layers.2." in n or ".layers.3." in n or n.startswith("mtp.layers.")]
    for name in needed[:: 1 if len(needed) < 60 else 3]:
        less = {n: t for n, t in state.items() if n != name}
        save_file(less, folder / "model.safetensors", metadata={"format": "pt"})
        refuses(folder, "missing")


@pytest.mark.parametrize("family", list(FAMILIES))
def test_wrong_shapes_are_refused(family: str, copy: Callable[..., Path]) -> None:
    folder = copy(family)
    state = load_file(folder / "model.safetensors")
    for name in [n for n in state if ".layers.3." in n or n == "lm_head.weight"][::3]:
        wrong = {**state, name: torch.cat([state[name], state[name][:1]])}
        save_file(wrong, folder / "model.safetensors", metadata={"format": "pt"})
        refuses(folder, "has shape")


@pytest.mark.parametrize(
    "name", ["model.layers.0.self_attn.o_proj.bias", "model.layers.8.mlp.up_proj.weight", "score.weight", "x"]
)
def test_tensors_without_a_place_are_refused(name: str, copy: Callable[..., Path]) -> None:
    folder = copy("qwen3")
    edit_state(folder, lambda state: state.update({name: torch.ones(4)}))
    refuses(folder, "unknown in this model")


def test_types_that_are_no_weights_are_refused(copy: Callable[..., Path]) -> None:
    folder = copy("qwen3")
    key = "model.layers.1.mlp.up_proj.weight"
    edit_state(folder, lambda state: state.update({key: state[key].to(torch.int8)}))
    refuses(folder, "dtype I8")
    edit_state(folder, lambda state: state.update({key: state[key].to(torch.float8_e4m3fn)}))
    refuses(folder, "no scales")


def test_a_missing_head_is_refused_unless_the_configuration_ties_it(copy: Callable[..., Path]) -> None:
    folder = copy("qwen35")
    edit_state(folder, lambda state: state.pop("lm_head.weight"))
    refuses(folder, "lm_head.weight is missing")
    edit_config(folder, lambda c: c.update(tie_word_embeddings=True))
    assert "output.weight" not in tensors(convert(folder), folder)


def test_a_tied_model_may_have_its_embeddings_under_the_name_of_the_head(copy: Callable[..., Path]) -> None:
    """As safetensors' save_model() stores it."""
    folder = copy("qwen3")
    edit_config(folder, lambda c: c.update(tie_word_embeddings=True))
    edit_state(folder, lambda state: state.pop("lm_head.weight"))
    expected = convert(folder)
    edit_state(folder, lambda state: state.update({"lm_head.weight": state.pop("model.embed_tokens.weight")}))
    assert convert(folder) == expected
    edit_config(folder, lambda c: c.update(tie_word_embeddings=False))
    refuses(folder, "missing: embed_tokens.weight")


def test_the_same_tensor_twice_is_refused(copy: Callable[..., Path]) -> None:
    folder = copy("qwen3")
    edit_state(folder, lambda state: state.update({"norm.weight": state["model.norm.weight"].clone()}))
    refuses(folder, "same tensor")


@pytest.mark.parametrize("method", ["aqlm", "hqq", "compressed-tensors", "eetq", 7])
def test_other_quantized_checkpoints_are_refused(method: object, copy: Callable[..., Path]) -> None:
    folder = copy("qwen3")
    edit_config(folder, lambda c: c.update(quantization_config={"quant_method": method}))
    edit_state(folder, lambda state: state.update({"model.layers.0.mlp.up_proj.qweight": torch.ones(4, 4).int()}))
    refuses(folder, "unquantized", ConfigError)


CONFIGS: dict[str, tuple[str, dict[str, Any], str]] = {
    "other architecture": ("qwen3", {"architectures": ["NoSuchLMHeadModel"]}, "NoSuchLMHeadModel"),
    "no architecture": ("qwen3", {"architectures": None}, "names no architecture"),
    "no heads": ("qwen3", {"num_attention_heads": None}, "num_attention_heads"),
    "heads as text": ("qwen3", {"num_attention_heads": "4"}, "num_attention_heads"),
    "negative size": ("qwen3", {"hidden_size": -64}, "hidden_size"),
    "billions of blocks": ("qwen3", {"num_hidden_layers": 2 * 10**9}, "num_hidden_layers"),
    "billions of experts": ("qwen3moe", {"num_local_experts": 2 * 10**9, "num_experts": 2 * 10**9}, "num_experts"),
    "odd groups": ("qwen3", {"num_key_value_heads": 3}, "key-value heads"),
    "other activation": ("qwen3", {"hidden_act": "gelu"}, "hidden_act"),
    "sliding window": (
        "qwen3",
        {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 0, "layer_types": None},
        "window of 64",
    ),
    "other rope": ("qwen3", {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "longrope"),
    "rope without base": ("qwen3", {"rope_parameters": {"rope_type": "default"}}, "rope_theta"),
    "yarn without factor": ("qwen3", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "factor"),
    "dense blocks in a MoE": ("qwen3moe", {"mlp_only_layers": [1]}, "mlp_only_layers"),
    "unnormalized experts": ("qwen3moe", {"norm_topk_prob": False}, "norm_topk_prob"),
    "no epsilon": ("llama3", {"rms_norm_eps": None}, "rms_norm_eps"),
    "an epsilon of one": ("llama3", {"rms_norm_eps": 1}, "rms_norm_eps"),
    "kinds of too few blocks": ("qwen35-text", {"layer_types": ["full_attention"]}, "layer_types"),
    "unknown kinds": ("qwen35-text", {"layer_types": ["mamba"] * 8}, "mamba"),
    "value heads": ("qwen35-text", {"linear_num_value_heads": 5}, "value heads"),
    "text_config as list": ("qwen35-text", {"text_config": [1]}, "text_config"),
}


@pytest.mark.parametrize("name", list(CONFIGS))
def test_configurations_that_are_refused(name: str, copy: Callable[..., Path]) -> None:
    family, change, message = CONFIGS[name]
    folder = copy(family)
    edit_config(folder, lambda config: config.update(change))
    refuses(folder, message, ConfigError)


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 10**12), st.floats(), st.text(max_size=3), st.just([]), st.just({})
)


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(data=st.data(), value=VALUES)
def test_any_value_in_any_field_converts_or_ends_in_an_error(
    data: st.DataObject, value: object, originals: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    family = data.draw(st.sampled_from(["qwen35", "qwen3moe", "llama3"]))
    source = originals(family)
    folder = tmp_path_factory.mktemp("any")
    for file in source.iterdir():
        (folder / file.name).symlink_to(file)
    config = json.loads((source / "config.json").read_text())
    part = data.draw(st.sampled_from([config] + ([config["text_config"]] if "text_config" in config else [])))
    part[data.draw(st.sampled_from(sorted(part)))] = value
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(config))
    output = tmp_path_factory.mktemp("out")
    try:
        convert_target(folder, output / "x.gguf", TargetOptions(outtype="bf16"))
    except EagleError as error:
        assert error.exit_code == 3
        assert not list(output.iterdir())
    else:
        assert [path.name for path in output.iterdir()] == ["x.gguf"]


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(where=st.floats(0, 1), cut=st.booleans(), byte=st.integers(0, 255))
def test_damaged_weight_files_convert_or_end_in_an_error(
    where: float, cut: bool, byte: int, originals: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = Path(shutil.copytree(originals("qwen3"), tmp_path_factory.mktemp("bytes") / "c"))
    data = bytearray((folder / "model.safetensors").read_bytes())
    n_header = 8 + int.from_bytes(data[:8], "little")
    at = int(where * n_header)
    data = data[:at] if cut else data[:at] + bytes([byte]) + data[at + 1 :]
    (folder / "model.safetensors").write_bytes(data)
    output = tmp_path_factory.mktemp("out")
    try:
        convert_target(folder, output / "x.gguf", TargetOptions(outtype="bf16"))
    except EagleError as error:
        assert error.exit_code == 3
        assert not list(output.iterdir())


# --- vision ------------------------------------------------------------------------------------------------------


def test_vision_needs_a_vision_tower(copy: Callable[..., Path]) -> None:
    folder = copy("qwen3")
    with pytest.raises(ConfigError, match="no supported vision encoder"):
        convert_vision(folder, folder.parent / "mm.gguf")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temporal_patch_size": 3}, "temporal_patch_size"),
        ({"depth": None}, "depth"),
        ({"out_hidden_size": 65}, "hidden_size"),
        ({"deepstack_visual_indexes": [9]}, "deepstack"),
    ],
)
def test_vision_configurations_that_are_refused(
    change: dict[str, Any], message: str, copy: Callable[..., Path]
) -> None:
    folder = copy("qwen3vl")
    edit_config(folder, lambda config: config["vision_config"].update(change))
    with pytest.raises(ConfigError, match=message):
        convert_vision(folder, folder.parent / "mm.gguf")
    assert not (folder.parent / "mm.gguf").exists()


def test_vision_needs_image_statistics(copy: Callable[..., Path]) -> None:
    folder = copy("qwen3vl")
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(ConfigError, match="image_mean"):
        convert_vision(folder, folder.parent / "mm.gguf")
    settings = folder / "processor_config.json"
    for mean, std in (([1e308] * 3, [1] * 3), ([True] * 3, [1] * 3), ([0], [1]), ([0] * 3, [0] * 3)):
        settings.write_text(json.dumps({"image_processor": {"image_mean": mean, "image_std": std}}))
        with pytest.raises(ConfigError, match=r"image_(mean|std) is"):
            convert_vision(folder, folder.parent / "mm.gguf")
    settings.write_text(json.dumps({"image_processor": {"image_mean": [0, 0, 0], "image_std": [1, 1, 1]}}))
    assert convert_vision(folder, folder.parent / "mm.gguf").arch == "clip"


def test_splitting_and_quantizing_exclude_each_other(copy: Callable[..., Path]) -> None:
    folder = copy("qwen3")
    with pytest.raises(UsageError, match="split-max-size"):
        convert_target(folder, folder.parent / "x.gguf", TargetOptions(outtype="q4_k_m", split_max_size=10**6))


@pytest.mark.parametrize("option", ["--no-norm-output", "--aux-layers=1,2,3", "--share-head", "--dry-run"])
def test_the_command_refuses_options_of_drafts(option: str, copy: Callable[..., Path], tmp_path: Path) -> None:
    outcome = llama_eagle("convert", copy("qwen3"), "-o", tmp_path / "out.gguf", option)
    name = option.split("=")[0].replace("--no-", "--")
    assert_one_line_error(outcome, 2, f"{name} does not apply to a target")


def test_sizes_are_written_as_by_the_gguf_package() -> None:
    for exponent in range(3, 13):
        for first in (1.001, 1.049, 4.02, 9.96, 13.6, 99.6, 123.4):
            count = int(first * 10**exponent)
            assert _rounded(count) == gguf.utility.model_weight_count_rounded_notation(count), count
