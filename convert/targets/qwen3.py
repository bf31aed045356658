"""Qwen3, dense and with experts."""

from __future__ import annotations

from llama_eagle.convert import rows
from llama_eagle.convert.targets.config import (
    ModelConfig,
    common_keys,
    dense_dims,
    moe_dims,
    moe_keys,
)
from llama_eagle.convert.targets.conversion import Conversion, sections
from llama_eagle.errors import ConfigError

CONVERSION = Conversion(
    arch="qwen3",
    architectures=("Qwen3ForCausalLM",),
    dims=dense_dims,
    keys=common_keys,
    sections=sections("qwen3", *rows.uniform()),
)


def _moe_dims(config: ModelConfig) -> dict[str, int]:
    if config.get("norm_topk_prob") is None:
        raise ConfigError(f"{config.where}: norm_topk_prob is missing, which means false; llama.cpp supports true only")
    return moe_dims(config)


MOE_CONVERSION = Conversion(
    arch="qwen3moe",
    architectures=("Qwen3MoeForCausalLM",),
    dims=_moe_dims,
    keys=lambda config, dims: {**common_keys(config, dims), **moe_keys(config, dims)},
    sections=sections("qwen3moe", *rows.uniform()),
)
