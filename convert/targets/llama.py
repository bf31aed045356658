"""Llama 3: q and k rows reordered for ggml's RoPE over adjacent pairs, llama3 frequency factors as a tensor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llama_eagle.convert.targets import rows
from llama_eagle.convert.targets.config import ModelConfig, common_keys, dense_dims, full_attention
from llama_eagle.convert.targets.table import Dims, Family, Row, Transform, text_blocks


def interleave(values: np.ndarray, n_head: int) -> np.ndarray:
    """Rows of each head from halves (x0..x_n y0..y_n) to pairs (x0 y0 x1 y1 ...)."""
    halves = values.reshape(n_head, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


Q_PAIRS = Transform(lambda values, dims: interleave(values, dims["heads"]))
K_PAIRS = Transform(lambda values, dims: interleave(values, dims["kv_heads"]))


def _keys(config: ModelConfig, dims: Dims) -> dict[str, Any]:
    return {**common_keys(config, dims), "vocab_size": dims["vocab"], "rope.dimension_count": dims["head"]}


def rope_factors(config: ModelConfig, n_rot: int) -> np.ndarray:
    """[n_rot / 2] divisors of the rotary frequencies for rope_type llama3: long wavelengths are stretched by `factor`,
    short ones kept, those between interpolated."""
    rope = config.rope
    factor, low, high, original = (
        config.number(name, rope)
        for name in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    )
    base = config.number("rope_theta", rope)
    frequencies = np.float32(1) / np.float32(base) ** (np.arange(0, n_rot, 2, dtype=np.float32) / np.float32(n_rot))
    wavelengths = 2 * math.pi / frequencies.astype(np.float64)
    smooth = (original / wavelengths - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    stretched = np.where(wavelengths > original / low, factor, between)
    return np.where(wavelengths < original / high, 1, stretched).astype(np.float32)


def _extra(config: ModelConfig, dims: Dims) -> dict[str, np.ndarray]:
    if config.rope["rope_type"] != "llama3":
        return {}
    return {"rope_freqs.weight": rope_factors(config, dims["head"])}


FAMILY = Family(
    arch="llama",
    architectures=("LlamaForCausalLM",),
    dims=dense_dims,
    keys=_keys,
    blocks=lambda config: text_blocks(full_attention(config)),
    sections={
        "model": rows.model_rows(),
        "full": (
            *rows.NORMS,
            Row("self_attn.q_proj.weight", "attn_q.weight", ("q", "embd"), Q_PAIRS),
            Row("self_attn.k_proj.weight", "attn_k.weight", ("kv", "embd"), K_PAIRS),
            *rows.ATTENTION[2:],
            *rows.DENSE,
        ),
    },
    extra=_extra,
)
