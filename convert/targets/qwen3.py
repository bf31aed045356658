"""Qwen3, dense and with experts."""

from __future__ import annotations

from llama_eagle.convert import rows
from llama_eagle.convert.targets.config import common_keys, dense_dims, full_attention, moe_dims, moe_keys
from llama_eagle.convert.targets.family import Family, text_blocks

FAMILY = Family(
    arch="qwen3",
    architectures=("Qwen3ForCausalLM",),
    dims=dense_dims,
    keys=common_keys,
    blocks=lambda config: text_blocks(full_attention(config)),
    sections={
        "model": rows.model_rows(),
        "full": (*rows.NORMS, *rows.ATTENTION, *rows.QK_NORMS, *rows.DENSE),
    },
)

MOE_FAMILY = Family(
    arch="qwen3moe",
    architectures=("Qwen3MoeForCausalLM",),
    dims=moe_dims,
    keys=lambda config, dims: {**common_keys(config, dims), **moe_keys(config, dims)},
    blocks=lambda config: text_blocks(full_attention(config)),
    sections={
        "model": rows.model_rows(),
        "full": (*rows.NORMS, *rows.ATTENTION, *rows.QK_NORMS, *rows.EXPERTS),
    },
)
