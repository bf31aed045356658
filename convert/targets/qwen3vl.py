"""Qwen3-VL: Qwen3's text model with three-part RoPE and vision features added after the first blocks."""

from __future__ import annotations

from typing import Any

from llama_eagle.convert.targets import rows
from llama_eagle.convert.targets.config import ModelConfig, common_keys, dense_dims, full_attention, mrope_sections
from llama_eagle.convert.targets.table import Dims, Family, text_blocks
from llama_eagle.convert.targets.vision import deepstack_layers


def vl_keys(config: ModelConfig, dims: Dims) -> dict[str, Any]:
    """Keys of the text part of a Qwen3-VL model."""
    vision = ModelConfig(config.root, config.where, part="vision_config")
    return {
        **common_keys(config, dims),
        "rope.dimension_sections": mrope_sections(config),
        "n_deepstack_layers": len(deepstack_layers(vision)) if config.root.get("vision_config") else 0,
    }


FAMILY = Family(
    arch="qwen3vl",
    architectures=("Qwen3VLForConditionalGeneration",),
    dims=dense_dims,
    keys=vl_keys,
    blocks=lambda config: text_blocks(full_attention(config)),
    sections={
        "model": rows.model_rows(),
        "full": (*rows.NORMS, *rows.ATTENTION, *rows.QK_NORMS, *rows.DENSE),
    },
)
