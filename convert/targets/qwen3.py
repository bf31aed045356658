"""Qwen3, dense and with experts."""

from __future__ import annotations

from llama_eagle.convert import rows
from llama_eagle.convert.targets.config import (
    ModelConfig,
    common_keys,
    dense_dims,
    full_attention,
    moe_dims,
    moe_keys,
)
from llama_eagle.convert.targets.family import Family, text_blocks
from llama_eagle.errors import ConfigError

FAMILY = Family(
    arch="qwen3",
    architectures=("Qwen3ForCausalLM",),
    dims=dense_dims,
    keys=common_keys,
    blocks=lambda config: text_blocks(full_attention(config)),
    sections={
        "model": rows.model_rows(),
        "full": (*rows.NORMS, *rows.ATTENTION, *rows.QK_NORMS, *rows.BIASES, *rows.DENSE),
    },
)


def _moe_dims(config: ModelConfig) -> dict[str, int]:
    if config.get("norm_topk_prob") is None:
        raise ConfigError(f"{config.where}: norm_topk_prob is missing, which means false; llama.cpp supports true only")
    return moe_dims(config)


MOE_FAMILY = Family(
    arch="qwen3moe",
    architectures=("Qwen3MoeForCausalLM",),
    dims=_moe_dims,
    keys=lambda config, dims: {**common_keys(config, dims), **moe_keys(config, dims)},
    blocks=lambda config: text_blocks(full_attention(config)),
    sections={
        "model": rows.model_rows(),
        "full": (*rows.NORMS, *rows.ATTENTION, *rows.QK_NORMS, *rows.BIASES, *rows.EXPERTS),
    },
)
