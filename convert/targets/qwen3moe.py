"""Qwen3 MoE."""

from __future__ import annotations

from typing import Any

from llama_eagle.convert.targets import rows
from llama_eagle.convert.targets.config import ModelConfig, common_keys, full_attention, moe_dims, moe_keys
from llama_eagle.convert.targets.table import Dims, Family, text_blocks


def _keys(config: ModelConfig, dims: Dims) -> dict[str, Any]:
    config.require("norm_topk_prob", True)  # llama.cpp's graph always normalizes the chosen experts' weights
    return {**common_keys(config, dims), **moe_keys(config, dims)}


FAMILY = Family(
    arch="qwen3moe",
    architectures=("Qwen3MoeForCausalLM",),
    dims=moe_dims,
    keys=_keys,
    blocks=lambda config: text_blocks(full_attention(config)),
    sections={
        "model": rows.model_rows(),
        "full": (*rows.NORMS, *rows.ATTENTION, *rows.QK_NORMS, *rows.EXPERTS),
    },
)
