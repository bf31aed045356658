"""Qwen3-VL MoE: Qwen3 MoE's text model with Qwen3-VL's positions and vision features."""

from __future__ import annotations

from llama_eagle.convert.targets import rows
from llama_eagle.convert.targets.config import full_attention, moe_dims, moe_keys
from llama_eagle.convert.targets.qwen3vl import vl_keys
from llama_eagle.convert.targets.table import Family, text_blocks

FAMILY = Family(
    arch="qwen3vlmoe",
    architectures=("Qwen3VLMoeForConditionalGeneration",),
    dims=moe_dims,
    keys=lambda config, dims: {**vl_keys(config, dims), **moe_keys(config, dims)},
    blocks=lambda config: text_blocks(full_attention(config)),
    sections={
        "model": rows.model_rows(),
        "full": (*rows.NORMS, *rows.ATTENTION, *rows.QK_NORMS, *rows.EXPERTS),
    },
)
