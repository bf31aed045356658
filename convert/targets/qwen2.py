"""Qwen2 and Qwen2.5 dense: biases on q, k and v."""

from __future__ import annotations

from llama_eagle.convert import rows
from llama_eagle.convert.targets.config import ModelConfig, common_keys, dense_dims
from llama_eagle.convert.targets.conversion import Conversion, sections
from llama_eagle.errors import ConfigError


def _dims(config: ModelConfig) -> dict[str, int]:
    dims = dense_dims(config)
    if dims["q"] != dims["embd"]:
        raise ConfigError(f"{config.where}: llama.cpp's Qwen2 needs heads * head_dim = hidden_size")
    return dims


CONVERSION = Conversion(
    arch="qwen2",
    architectures=("Qwen2ForCausalLM",),
    dims=_dims,
    keys=common_keys,
    sections=sections("qwen2", *rows.uniform(biases=True)),
)
