"""Qwen3.5: one gated full-attention block after every three Gated DeltaNet blocks; dense, or with experts."""

from __future__ import annotations

from typing import Any

from llama_eagle.convert import rope, rows
from llama_eagle.convert.table import Dims
from llama_eagle.convert.targets.config import (
    ModelConfig,
    common_keys,
    dense_dims,
    linear_dims,
    linear_keys,
    moe_dims,
    moe_keys,
)
from llama_eagle.convert.targets.conversion import Conversion, hybrid_blocks, sections


def _dims(config: ModelConfig) -> dict[str, int]:
    return {**dense_dims(config), **linear_dims(config)}


def _keys(config: ModelConfig, dims: Dims) -> dict[str, Any]:
    keys = {**common_keys(config, dims), **linear_keys(config, dims)}
    sections = rope.target_sections(config.rope, keys["rope.dimension_count"], default=[11, 11, 10])
    return {**keys, "rope.dimension_sections": sections}


def _moe_dims(config: ModelConfig) -> dict[str, int]:
    shared = config.need_integer("shared_expert_intermediate_size")
    return {**moe_dims(config), **linear_dims(config), "shared_ff": shared}


def _moe_keys(config: ModelConfig, dims: Dims) -> dict[str, Any]:
    return {**_keys(config, dims), **moe_keys(config, dims)}


CONVERSION = Conversion(
    arch="qwen35",
    architectures=("Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM"),
    dims=_dims,
    keys=_keys,
    blocks=hybrid_blocks,
    sections=sections("qwen35", *rows.HYBRID, *rows.DELTA_NET),
)

MOE_CONVERSION = Conversion(
    arch="qwen35moe",
    architectures=("Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM"),
    dims=_moe_dims,
    keys=_moe_keys,
    blocks=hybrid_blocks,
    sections=sections("qwen35moe", *rows.HYBRID, *rows.DELTA_NET),
)
