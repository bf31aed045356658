"""RoPE: the many spellings in config.json, as GGUF keys and a table of frequency factors.

llama.cpp reads the base, linear and YaRN scaling from keys; llama3 scaling, and YaRN with other than the usual
betas, become `rope_freqs.weight`, by which it divides each pair's frequency.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from llama_eagle.convert.drafts.config import Fields
from llama_eagle.errors import ConfigError

DEFAULT_BASE = 10000.0


@dataclass(frozen=True)
class Rope:
    """Keys below `eagle3.rope.`, factors [n_rot / 2] or None, and what to tell the user."""

    base: float
    n_rot: int
    kind: str
    keys: dict[str, Any] = field(default_factory=dict)
    factors: np.ndarray | None = None
    warnings: tuple[str, ...] = ()


def read_rope(layer: Fields, head_dim: int, n_ctx: int, base: float | None = None) -> Rope:
    """Rotary settings of the draft. `base` overrides the configured one; n_ctx is max_position_embeddings."""
    params, warnings = _parameters(layer)
    if base is None:
        base = params.number("rope_theta")
        base = layer.number("rope_theta") if base is None else base
    if base is None:
        base = DEFAULT_BASE
        warnings.append(f"no RoPE base in config.json: {DEFAULT_BASE:g}, which the trainers hard-code")
    if base <= 1:
        raise ConfigError(f"{layer.where}: rope_theta is {base:g}, expected a number above 1")
    n_rot = _rotated(layer, params, head_dim, warnings)
    kind = (params.text("rope_type") or params.text("type") or "default").lower()
    keys, factors = _scaling(kind, params, base, n_rot, n_ctx, warnings)
    return Rope(base, n_rot, kind, keys, factors, tuple(warnings))


def _parameters(layer: Fields) -> tuple[Fields, list[str]]:
    """rope_parameters, before rope_scaling; of one per layer type, that of the draft's own type."""
    params = layer.child("rope_parameters") or layer.child("rope_scaling") or Fields({})
    per_type = {k: v for k in ("full_attention", "sliding_attention") if (v := params.child(k))}
    if not per_type:
        return params, []
    own = next(iter(layer.texts("layer_types")), "")
    kind = own if own in per_type else min(per_type, key=lambda k: k != "sliding_attention")
    if len({str(sorted(p.data.items())) for p in per_type.values()}) == 1:
        return per_type[kind], []
    return per_type[kind], [f"RoPE differs between layer types; that of {kind} is used"]


def _rotated(layer: Fields, params: Fields, head_dim: int, warnings: list[str]) -> int:
    part = params.number("partial_rotary_factor")
    part = layer.number("partial_rotary_factor") if part is None else part
    if part is None or part == 1:
        return head_dim
    n_rot = int(head_dim * part)
    if not 0 < n_rot <= head_dim or n_rot % 2:
        raise ConfigError(f"{layer.where}: partial_rotary_factor is {part}, which rotates {n_rot} of {head_dim} values")
    warnings.append(f"partial_rotary_factor {part:g}: {n_rot} of {head_dim} values of a head are rotated, as vLLM does")
    return n_rot


def _scaling(
    kind: str, params: Fields, base: float, n_rot: int, n_ctx: int, warnings: list[str]
) -> tuple[dict[str, Any], np.ndarray | None]:
    if kind in ("default", "mrope", "none"):
        return {}, None  # for text all position components are equal, so that mrope is plain
    if kind == "dynamic":
        warnings.append(f"dynamic RoPE scaling begins beyond {n_ctx} tokens; the GGUF describes it up to there")
        return {}, None
    if kind not in ("linear", "llama3", "yarn"):
        raise ConfigError(
            f"{params.where}: RoPE type {kind!r} is not supported (default, linear, dynamic, llama3, yarn)"
        )
    factor = params.number("factor")
    if factor is None or factor < 1:
        raise ConfigError(f"{params.where}: RoPE type {kind} with factor {factor}, expected a number of at least 1")
    if kind == "linear":
        return {"scaling.type": "linear", "scaling.factor": factor}, None
    if kind == "llama3":
        return {}, _llama3_factors(params, base, n_rot, factor)
    return _yarn(params, base, n_rot, factor)


def _need(params: Fields, key: str) -> float:
    value = params.number(key)
    if value is None or value <= 0:
        raise ConfigError(f"{params.where}: {key} is {value}, expected a positive number")
    return value


def _frequencies(base: float, n_rot: int) -> np.ndarray:
    """Radians per token of each rotated pair."""
    return base ** -(np.arange(0, n_rot, 2, dtype=np.float64) / n_rot)


def _llama3_factors(params: Fields, base: float, n_rot: int, factor: float) -> np.ndarray:
    """Long wavelengths are stretched by `factor`, short ones kept, those between mixed smoothly."""
    low, high = _need(params, "low_freq_factor"), _need(params, "high_freq_factor")
    if high <= low:
        raise ConfigError(f"{params.where}: high_freq_factor {high:g} must exceed low_freq_factor {low:g}")
    turns = _need(params, "original_max_position_embeddings") * _frequencies(base, n_rot) / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - kept) / factor + kept)).astype(np.float32)


def _yarn(params: Fields, base: float, n_rot: int, factor: float) -> tuple[dict[str, Any], np.ndarray | None]:
    """Keys, or factors where llama.cpp's fixed betas (32, 1) and rounding would not do."""
    n_orig = _need(params, "original_max_position_embeddings")
    magnitude = _yarn_magnitude(params, factor)
    fast, slow = params.number("beta_fast") or 32.0, params.number("beta_slow") or 1.0
    truncate = params.flag("truncate")
    if (fast, slow) == (32.0, 1.0) and truncate is not False:
        usual = 1 + 0.1 * math.log(factor)  # llama.cpp multiplies by this by itself
        keys = {"scaling.type": "yarn", "scaling.factor": factor, "scaling.original_context_length": int(n_orig)}
        return (keys if math.isclose(magnitude, usual) else {**keys, "scaling.attn_factor": magnitude / usual}), None
    if not 0 < slow < fast:
        raise ConfigError(f"{params.where}: beta_fast {fast:g} must exceed beta_slow {slow:g}, and both be positive")

    def pair(turns: float) -> float:  # the index of the pair that makes so many turns over the original context
        return n_rot * math.log(n_orig / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair(fast), pair(slow)
    if truncate is not False:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, n_rot - 1)
    stretched = np.clip((np.arange(n_rot // 2) - low) / max(high - low, 0.001), 0, 1)
    factors = (1 / (stretched / factor + 1 - stretched)).astype(np.float32)
    return {"scaling.type": "none", "scaling.attn_factor": magnitude}, factors


def _yarn_magnitude(params: Fields, factor: float) -> float:
    """What queries and keys are multiplied by."""
    stated = params.number("attention_factor")
    if stated is not None:
        if stated <= 0:
            raise ConfigError(f"{params.where}: attention_factor is {stated:g}, expected a positive number")
        return stated
    mscale, all_dim = params.number("mscale"), params.number("mscale_all_dim")
    if mscale and all_dim:
        return (0.1 * mscale * math.log(factor) + 1) / (0.1 * all_dim * math.log(factor) + 1)
    return 0.1 * math.log(factor) + 1
