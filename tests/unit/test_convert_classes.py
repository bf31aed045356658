"""Classes of llama.cpp's converter for models with an encoder, by config.json as publishers and tools save it."""

from __future__ import annotations

from typing import Any

import pytest
from llama_eagle.convert.targets.conversion import find_conversion
from llama_eagle.convert.upstream import hparams
from llama_eagle.convert.upstream.converter import ENCODER, require_class
from llama_eagle.convert.upstream.encoders import refuse_unlike
from llama_eagle.errors import ConfigError

pytestmark = pytest.mark.native  # the classes are those of the built library's converter

Parts = dict[str, Any]
CASES: dict[str, tuple[Parts, str, str]] = {  # config.json -> classes of its text model and of its encoder
    "published SmolVLM": (
        {
            "architectures": ["SmolVLMForConditionalGeneration"],
            "text_config": {"architectures": ["VLlama3ForCausalLM"]},
        },
        "VLlama3ForCausalLM",
        "SmolVLMForConditionalGeneration",
    ),
    "saved SmolVLM": (
        {"architectures": ["SmolVLMForConditionalGeneration"], "text_config": {"model_type": "llama"}},
        "LlamaForCausalLM",
        "SmolVLMForConditionalGeneration",
    ),
    "published InternVL": (
        {
            "architectures": ["InternVLChatModel"],
            "llm_config": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
            "vision_config": {"architectures": ["InternVisionModel"]},
        },
        "Qwen2ForCausalLM",
        "InternVisionModel",
    ),
    "LFM2-VL": (
        {"architectures": ["Lfm2VlForConditionalGeneration"], "text_config": {"model_type": "lfm2"}},
        "Lfm2ForCausalLM",
        "Lfm2VlForConditionalGeneration",
    ),
    "Pixtral": (
        {
            "architectures": ["LlavaForConditionalGeneration"],
            "text_config": {"architectures": ["MistralForCausalLM"], "model_type": "mistral"},
            "vision_config": {"architectures": ["PixtralVisionModel"], "model_type": "pixtral"},
        },
        "MistralForCausalLM",
        "LlavaForConditionalGeneration",
    ),
    "Qwen2.5-VL": (
        {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "text_config": {"model_type": "qwen2_5_vl_text"}},
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
    ),
    "Qwen2.5-Omni": (
        {
            "architectures": ["Qwen2_5OmniModel"],
            "thinker_config": {"text_config": {"model_type": "qwen2_5_omni_text"}},
        },
        "Qwen2_5OmniModel",
        "Qwen2_5OmniModel",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_class_of_a_model_with_an_encoder(case: str) -> None:
    config, text, encoder = CASES[case]
    assert find_conversion(config, "folder") is None, "no table of ours reads a part of another model"
    assert require_class(config, "folder") == text
    assert require_class(config, "folder", table=ENCODER) == encoder


def test_the_converter_is_given_that_class() -> None:
    """It looks in the part first, and would stop at a class that it does not have."""
    config, text, encoder = CASES["Pixtral"]
    for is_encoder, part, name in ((False, "text_config", text), (True, "vision_config", encoder)):
        hparams.state_class(config, {name}, encoder=is_encoder)
        assert config[part]["architectures"] == [name]


@pytest.mark.parametrize("part", [{}, {"text_config": {"model_type": "no-such"}}, {"text_config": {"model_type": []}}])
def test_unknown_classes_are_refused(part: Parts) -> None:
    config = {"architectures": ["NoSuchForConditionalGeneration"], **part}
    with pytest.raises(ConfigError, match="'NoSuchForConditionalGeneration' is not supported"):
        find_conversion(config, "folder")
    with pytest.raises(ConfigError, match="no encoder that is supported"):
        require_class(config, "folder", table=ENCODER)


def test_encoders_whose_tensors_are_left_out_are_refused() -> None:
    config = {"architectures": ["InternVLForConditionalGeneration"], "text_config": {"model_type": "qwen3"}}
    config |= {"model_type": "internvl", "vision_config": {"architectures": ["InternVisionModel"]}}
    assert require_class(config, "folder") == "Qwen3ForCausalLM"
    with pytest.raises(ConfigError, match="no encoder that is supported"):
        require_class(config, "folder", table=ENCODER)


@pytest.mark.parametrize(
    ("model_type", "values"),
    [
        ("qwen2_5_vl", {"window_size": 56}),
        ("qwen2_5_vl", {"window_size": 224}),
        ("qwen2_5_vl", {"fullatt_block_indexes": [7]}),
        ("qwen2_5_vl", {"fullatt_block_indexes": []}),
        ("qwen2_5_vl", {"hidden_act": "gelu"}),
        ("qwen2_vl", {"hidden_act": "gelu"}),
        ("qwen2_vl", {"spatial_merge_size": 4}),
    ],
)
def test_encoders_that_libmtmd_computes_otherwise_are_refused(model_type: str, values: Parts) -> None:
    published = {"depth": 32, "patch_size": 14, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31]}
    plain = published if model_type == "qwen2_5_vl" else {"depth": 32, "patch_size": 14, "hidden_act": "quick_gelu"}
    refuse_unlike({"model_type": model_type, "vision_config": plain}, "it")
    refuse_unlike({"model_type": "gemma3", "vision_config": values}, "it")
    with pytest.raises(ConfigError, match=rf"^it: vision_config has {next(iter(values))} .* Leave --mmproj out\.$"):
        refuse_unlike({"model_type": model_type, "vision_config": plain | values}, "it")
