"""Qwen3 dense."""

from __future__ import annotations

from llama_eagle.convert.targets import rows
from llama_eagle.convert.targets.config import common_keys, dense_dims, full_attention
from llama_eagle.convert.targets.table import Family, text_blocks

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
