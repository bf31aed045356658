"""Qwen2 and Qwen2.5 dense: biases on q, k and v."""

from __future__ import annotations

from llama_eagle.convert import rows
from llama_eagle.convert.targets.config import ModelConfig, common_keys, dense_dims, full_attention
from llama_eagle.convert.targets.family import Family, text_blocks
from llama_eagle.errors import ConfigError


def _dims(config: ModelConfig) -> dict[str, int]:
    dims = dense_dims(config)
    if dims["q"] != dims["embd"]:
        raise ConfigError(f"{config.where}: llama.cpp's Qwen2 needs heads * head_dim = hidden_size")
    return dims


FAMILY = Family(
    arch="qwen2",
    architectures=("Qwen2ForCausalLM",),
    dims=_dims,
    keys=common_keys,
    blocks=lambda config: text_blocks(full_attention(config)),
    sections={
        "model": rows.model_rows(),
        "full": (*rows.NORMS, *rows.ATTENTION, *rows.qkv_biases(), *rows.DENSE),
    },
)
