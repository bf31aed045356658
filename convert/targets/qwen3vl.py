"""Qwen3-VL: Qwen3's text models with three-part RoPE and vision features added after the first blocks."""

from __future__ import annotations

from typing import Any

from llama_eagle.convert import rope, rows
from llama_eagle.convert.table import Dims
from llama_eagle.convert.targets.config import (
    ModelConfig,
    common_keys,
    dense_dims,
    moe_dims,
    moe_keys,
)
from llama_eagle.convert.targets.conversion import Conversion, sections
from llama_eagle.convert.targets.vision import deepstack_layers


def _keys(config: ModelConfig, dims: Dims) -> dict[str, Any]:
    """Return the keys of the text part of a Qwen3-VL model."""
    vision = ModelConfig(config.root.data, config.source, part="vision_config")
    return {
        **common_keys(config, dims),
        "rope.dimension_sections": rope.target_sections(config.rope, dims["head"]),
        "n_deepstack_layers": len(deepstack_layers(vision)) if config.root.get("vision_config") else 0,
    }


CONVERSION = Conversion(
    arch="qwen3vl",
    architectures=("Qwen3VLForConditionalGeneration",),
    dims=dense_dims,
    keys=_keys,
    sections=sections("qwen3vl", *rows.uniform()),
)

MOE_CONVERSION = Conversion(
    arch="qwen3vlmoe",
    architectures=("Qwen3VLMoeForConditionalGeneration",),
    dims=moe_dims,
    keys=lambda config, dims: {**_keys(config, dims), **moe_keys(config, dims)},
    sections=sections("qwen3vlmoe", *rows.uniform()),
)
