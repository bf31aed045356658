"""Settings of quantized checkpoints: what the tensors do not show is known to be harmless, or refused by name."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from fixtures.eagle3_checkpoints import DraftSpec, make_draft, make_target_gguf
from fixtures.targets import make_target, store_fp8
from llama_eagle.convert.drafts import convert_draft
from llama_eagle.convert.source.coded import read_scheme
from llama_eagle.convert.source.stated import _HARMLESS
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.errors import ConfigError


def applied(*locations: str) -> dict[str, Any]:
    """A rotation as compressed-tensors 0.20.1 stores it."""
    groups = [
        {"targets": ["re:.*down_proj$"], "location": place, "inverse": False, "ignore": []} for place in locations
    ]
    fixed = {"randomize": False, "requires_grad": False, "head_dim": None, "precision": "torch.float64"}
    return {"type": "hadamard", "apply": groups, **fixed}


def transforms(**groups: Any) -> dict[str, Any]:
    """llm-compressor 0.14.0.1: the settings of rotated plain weights."""
    stated = {"quant_method": "compressed-tensors", "sparsity_config": {}, "version": "0.20.1"}
    return {"quantization_config": {**stated, "transform_config": {"config_groups": groups}}}


R1 = R2 = applied("weight_output", "weight_input")
HADAMARD = {"algorithm": "hadamard", "backend": "auto", "block_size": 32, "hadamard_type": "hadamard"}
SPINQUANT = {"algorithm": "spinquant", "r1": True, "r2": True, "r3": False, "r4": False, "online_r1_rotation": False}


def auto_round(**more: Any) -> dict[str, Any]:
    return {"quantization_config": {"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round", **more}}


# What the producers write. GPTQModel 7.7.0, AutoRound 0.16.1, llm-compressor 0.14.0.1.
ROTATED: dict[str, tuple[dict[str, Any], str]] = {
    "GPTQModel": (
        {"quantization_config": {"quant_method": "gptq", "bits": 4, "rotation": "hadamard"}},
        "quantization_config.rotation: GPTQModel",
    ),
    "GPTQModel, random": (
        {"quantization_config": {"quant_method": "gptq", "bits": 4, "rotation": "random"}},
        "quantization_config.rotation: GPTQModel",
    ),
    "AutoRound": (auto_round(rotation_config=HADAMARD), "quantization_config.rotation_config: AutoRound"),
    "AutoRound, a layer": (
        auto_round(extra_config={"lm_head": {"rotation_config": HADAMARD}}),
        "quantization_config.extra_config.lm_head.rotation_config",
    ),
    "AutoRound, plain weights": ({"rotation_config": HADAMARD}, "config.json: rotation_config: AutoRound"),
    "AutoRound, R1 at run time": (
        auto_round(spinquant_config={**SPINQUANT, "online_r1_rotation": True}),
        "spinquant_config",
    ),
    "AutoRound, R4": (auto_round(spinquant_config={**SPINQUANT, "r4": True}), "spinquant_config"),
    "R3": (transforms(R3=applied("q_attn", "k_cache")), "transform_config: llm-compressor"),
    "R4": (transforms(R1=R1, R4=applied("input", "weight_input")), "transform_config: llm-compressor"),
    "QuIP": (transforms(u=applied("weight_output", "output"), v=applied("input", "weight_input")), "transform_config"),
    "an unknown place": (transforms(R9=applied("residual")), "transform_config"),
    "no place": (transforms(R9={"type": "hadamard"}), "transform_config"),
    "in text_config": ({"text_config": transforms(R3=applied("q_attn", "k_cache"))}, "transform_config"),
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target("qwen3", tmp_path_factory.mktemp("original"), num_hidden_layers=2)


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "folder"))


def state(folder: Path, more: dict[str, Any]) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **more}))
    return folder


def converted(folder: Path) -> bytes:
    path = folder.parent / "out.gguf"
    path.unlink(missing_ok=True)
    convert_target(folder, path, TargetOptions(outtype="f32", name="x"))
    return path.read_bytes()


def refusal(folder: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        converted(folder)
    assert "\n" not in str(caught.value)
    assert not (folder.parent / "out.gguf").exists()
    return str(caught.value)


@pytest.mark.parametrize("name", ROTATED)
def test_rotations_at_run_time_are_refused(name: str, original: Path, folder: Path) -> None:
    more, named = ROTATED[name]
    message = refusal(state(folder, more))
    assert named in message
    assert message.endswith("convert the unquantized checkpoint and quantize the GGUF")
    assert converted(original)  # the remedy


@pytest.mark.parametrize("more", [transforms(R1=R1, R2=R2), auto_round(spinquant_config=SPINQUANT)])
def test_rotations_in_the_weights_are_right(more: dict[str, Any], original: Path, folder: Path) -> None:
    assert converted(state(folder, more)) == converted(original)


RECIPE = "default_stage:\n  default_modifiers:\n    {}Modifier:\n      rotations: [{}]\n"


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        (RECIPE.format("SpinQuant", "R1, R4"), "recipe.yaml rotated the weights"),
        (RECIPE.format("QuIP", "v"), "recipe.yaml rotated the weights"),
        (RECIPE.format("Butterfly", "B1"), "ButterflyModifier is unknown here"),
        (RECIPE.format("SpinQuant", "R1, R2"), None),
        (RECIPE.format("SmoothQuant", ""), None),
    ],
)
def test_the_recipe_of_llm_compressor(recipe: str, told: str | None, original: Path, folder: Path) -> None:
    (folder / "recipe.yaml").write_text(recipe)
    if told is None:
        assert converted(folder) == converted(original)
    else:
        assert told in refusal(folder)


def test_weights_that_are_quantized_at_run_time(folder: Path) -> None:
    more = {"quantization_config": {"quant_method": "bitnet", "linear_class": "autobitlinear"}}
    assert "'bitnet' quantizes its weights at run time" in refusal(state(folder, more))


# --- unknown keys ------------------------------------------------------------------------------------------------

FP8 = {"quant_method": "fp8", "weight_block_size": [32, 32]}
UNKNOWN: dict[str, dict[str, Any]] = {
    "weight_scale_semantics": {"weight_scale_semantics": "inverse"},  # GPTQModel: scales that divide
    "expert_dtype": {"expert_dtype": "fp4"},
    "codebook": {"codebook": [1, 2]},
    "extra_config.lm_head.codebook": {"extra_config": {"lm_head": {"codebook": 3}}},
}


@pytest.fixture
def fp8(folder: Path) -> Path:
    store_fp8(folder, 32)
    return folder


@pytest.mark.parametrize("place", UNKNOWN)
def test_a_key_that_is_unknown_is_refused(place: str, fp8: Path) -> None:
    expected = converted(fp8)
    message = refusal(state(fp8, {"quantization_config": {**FP8, **UNKNOWN[place]}}))
    assert f"quantization_config.{place} is " in message
    assert message.endswith("If it changes no weight, remove it")
    assert converted(state(fp8, {"quantization_config": FP8})) == expected  # the remedy


def test_keys_that_are_harmless_or_empty_change_nothing(fp8: Path) -> None:
    expected = converted(fp8)
    keys = {key: "x" for key in _HARMLESS["fp8"] if key not in FP8}
    empty = {"rotation": None, "codebook": None, "transform_config": {}, "is_rotated": False, "expert_dtype": "fp8"}
    assert converted(state(fp8, {"quantization_config": {**keys, **empty, **FP8}})) == expected


def test_plain_weights_with_the_settings_of_their_base(original: Path, folder: Path) -> None:
    more = {"quantization_config": {**FP8, "codebook": [1, 2]}}
    assert converted(state(folder, more)) == converted(original)


def test_every_method_that_is_read_has_its_keys() -> None:
    stated: dict[str, dict[str, Any]] = {
        "compressed-tensors": {"config_groups": {"0": {"weights": {"num_bits": 8}}}},
        "metal": {"bits": 4},
        "modelopt": {"quant_algo": "FP8"},
    }
    for method in _HARMLESS:
        config = {"quant_method": method, **stated.get(method, {})}
        assert read_scheme({"quantization_config": config}), method
        assert set(config) <= _HARMLESS[method] | {"config_groups"}, method


@pytest.mark.parametrize(
    ("more", "shift"),
    [({}, 1), ({"checkpoint_format": "gptq_v2"}, 0), ({"format": "gptq_v2"}, 0),
     ({"format": "gptq_v2", "checkpoint_format": "gptq"}, 1)],
)  # fmt: skip
def test_the_format_of_gptq_under_both_of_its_keys(more: dict[str, Any], shift: int) -> None:
    """transformers 5.24 reads checkpoint_format before format."""
    assert read_scheme({"quantization_config": {"quant_method": "gptq", **more}}).zero_shift == shift


@pytest.mark.parametrize("more", [{"version": "gemv"}, {"format": "gemv_fast"}, {"backend": "llm-awq"}])
def test_other_packings_of_awq_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="quantized with 'awq'"):
        read_scheme({"quantization_config": {"quant_method": "awq", **more}})


@pytest.mark.parametrize(
    ("file", "stated", "told"),
    [
        ("quantize_config.json", {"bits": 4, "rotation": "hadamard"}, "quantization_config.rotation: GPTQModel"),
        (
            "hf_quant_config.json",
            {"quantization": {"quant_algo": "FP8", "rotation": "x"}},
            "quantization_config.rotation",
        ),
    ],
)
def test_settings_in_a_file_of_the_producer(file: str, stated: dict[str, Any], told: str, folder: Path) -> None:
    """AutoGPTQ and ModelOpt write them next to config.json, which may not have them."""
    (folder / file).write_text(json.dumps(stated))
    assert told in refusal(folder)
    state(folder, {"quantization_config": {"quant_method": "gptq", "bits": 4}})  # config.json takes precedence
    assert converted(folder)


# --- drafts ------------------------------------------------------------------------------------------------------


def test_drafts(tmp_path: Path) -> None:
    """The settings of a plain draft may be those of its target. Coded weights are described by them."""
    target = make_target_gguf(tmp_path / "target.gguf")
    rotated = ROTATED["GPTQModel"][0]
    draft = make_draft(tmp_path / "plain", DraftSpec(config=rotated))
    convert_draft(draft, target, tmp_path / "out.gguf")
    coded = make_draft(tmp_path / "coded", DraftSpec(dtype="bfloat16"))
    store_fp8(coded, 32)
    for more, told in ((rotated, "rotation"), ({"quantization_config": {**FP8, "codebook": 1}}, "codebook")):
        with pytest.raises(ConfigError, match=re.escape(f"quantization_config.{told}")):
            convert_draft(state(coded, more), target, tmp_path / "no.gguf")
