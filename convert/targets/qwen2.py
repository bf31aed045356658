"""Qwen2 and Qwen2.5 dense: biases on q, k and v."""

from __future__ import annotations

from llama_eagle.convert.targets import rows
from llama_eagle.convert.targets.config import ModelConfig, common_keys, dense_dims, full_attention
from llama_eagle.convert.targets.table import Family, Row, text_blocks
from llama_eagle.errors import ConfigError

BIASES = (
    Row("self_attn.q_proj.bias", "attn_q.bias", ("q",)),
    Row("self_attn.k_proj.bias", "attn_k.bias", ("kv",)),
    Row("self_attn.v_proj.bias", "attn_v.bias", ("kv",)),
)


def _dims(config: ModelConfig) -> dict[str, int]:
    dims = dense_dims(config)
    if dims["q"] != dims["embd"]:
        raise ConfigError(f"{config.where}: config.json: llama.cpp's Qwen2 needs heads * head_dim = hidden_size")
    return dims


FAMILY = Family(
    arch="qwen2",
    architectures=("Qwen2ForCausalLM",),
    dims=_dims,
    keys=common_keys,
    blocks=lambda config: text_blocks(full_attention(config)),
    sections={
        "model": rows.model_rows(),
        "full": (*rows.NORMS, *rows.ATTENTION, *BIASES, *rows.DENSE),
    },
)
