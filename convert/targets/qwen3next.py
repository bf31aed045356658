"""Qwen3-Next: the first hybrid. Its DeltaNet projections are fused per key head, and value heads stay grouped."""

from __future__ import annotations

from typing import Any

import numpy as np
from llama_eagle.convert import rows
from llama_eagle.convert.table import Dims, Row, Transform
from llama_eagle.convert.targets.config import (
    ModelConfig,
    common_keys,
    linear_dims,
    linear_keys,
    moe_dims,
    moe_keys,
)
from llama_eagle.convert.targets.conversion import Conversion, hybrid_blocks, sections


def _split_heads(values: np.ndarray, dims: Dims) -> tuple[np.ndarray, ...]:
    """Split [q k v z] per key head into q, k, v and z rows, each with its heads together."""
    heads, k_head = dims["k_heads"], dims["k_head"]
    per_key = dims["lin_v"] // heads
    groups = values.reshape(heads, -1, values.shape[1])
    parts = np.split(groups, np.cumsum([k_head, k_head, per_key]), axis=1)
    return tuple(part.reshape(-1, values.shape[1]) for part in parts)


QKV = Transform(lambda v, d: np.concatenate(_split_heads(v, d)[:3]), lambda shape, d: (d["lin_qkv"], shape[1]))
Z = Transform(lambda v, d: _split_heads(v, d)[3], lambda shape, d: (d["lin_v"], shape[1]))

DELTA_NET = (
    Row("linear_attn.in_proj_qkvz.weight", "attn_qkv.weight", ("lin_qkvz", "embd"), QKV),
    Row("linear_attn.in_proj_qkvz.weight", "attn_gate.weight", ("lin_qkvz", "embd"), Z),
    Row("linear_attn.in_proj_ba.weight", "ssm_ba.weight", ("2*v_heads", "embd")),
    Row("linear_attn.conv1d.weight", "ssm_conv1d.weight", rows.CONV, rows.SQUEEZE_CONV),
    Row("linear_attn.A_log", "ssm_a", ("v_heads",), rows.NEGATIVE_EXP),
    Row("linear_attn.dt_bias", "ssm_dt.bias", ("v_heads",)),
    rows.norm("linear_attn.norm.weight", "ssm_norm.weight", "v_head"),
    Row("linear_attn.out_proj.weight", "ssm_out.weight", ("embd", "lin_v")),
)


def _dims(config: ModelConfig) -> dict[str, int]:
    shared = config.need_integer("shared_expert_intermediate_size")
    return {**moe_dims(config), **linear_dims(config), "shared_ff": shared}


def _keys(config: ModelConfig, dims: Dims) -> dict[str, Any]:
    return {**common_keys(config, dims), **moe_keys(config, dims), **linear_keys(config, dims)}


CONVERSION = Conversion(
    arch="qwen3next",
    architectures=("Qwen3NextForCausalLM",),
    dims=_dims,
    keys=_keys,
    blocks=hybrid_blocks,
    sections=sections("qwen3next", *rows.HYBRID, *DELTA_NET),
)
