"""RoPE settings: their variants in config.json, as GGUF keys and a table of frequency factors.

llama.cpp reads the base, linear and YaRN scaling from keys. llama3 scaling becomes `rope_freqs.weight`, by which
llama.cpp divides each pair's frequency. So does YaRN of a draft with other than the default betas, which its graph does
not read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from llama_eagle.convert.source.config import Fields
from llama_eagle.errors import ConfigError
from llama_eagle.gguf.rotation import QWEN3VL_SECTIONS, unassigned_pairs

DEFAULT_BASE = 10000.0  # hard-coded in the trainers of drafts
_SIBLINGS = ("rope_theta", "partial_rotary_factor")
_LENGTH = "original_max_position_embeddings"
_UNROTATED = 1e30  # divisor of the frequency of a pair that is not rotated


def parameters(config: Fields, prefer: str = "full_attention") -> tuple[Fields, list[str]]:
    """Return RoPE settings by their current names, and warnings.

    They are rope_parameters, overlaid by rope_scaling (transformers prefers it, and people add it by hand), with
    rope_theta next to them. If there is one set per layer type, use that of the first layer's type, or else of
    `prefer`. "rope_type" is always present.

    YaRN and llama3 need the original context length. As in transformers, a value next to the settings replaces the one
    inside, and max_position_embeddings is the default. YaRN's null factor is the ratio of the two lengths.
    """
    found = _overlaid(config.child("rope_parameters"), config.child("rope_scaling"), config.where)
    per_type = {kind: v for kind in ("full_attention", "sliding_attention") if (v := found.child(kind))}
    warnings = []
    if per_type:
        kinds = config.texts("layer_types")
        own = next(iter(kinds), "")
        kind = next(kind for kind in (own, prefer, *per_type) if kind in per_type)
        if set(kinds) != {kind} and len({str(sorted(each.data.items())) for each in per_type.values()}) > 1:
            warnings.append(f"RoPE differs between layer types; that of {kind} is used")
        found = per_type[kind]
    siblings = {name: config.get(name) for name in _SIBLINGS if config.get(name) is not None}
    kind = (found.text("rope_type") or found.text("type") or "default").lower()
    given = {name: value for name, value in found.data.items() if value is not None}
    if kind in ("yarn", "llama3"):
        outer = None if per_type else config.get(_LENGTH)
        given[_LENGTH] = given.get(_LENGTH, config.get("max_position_embeddings")) if outer is None else outer
    if kind == "yarn" and found.data.get("factor", 0) is None:
        original = Fields(given, found.where).need_number(_LENGTH)
        given["factor"] = config.need_number("max_position_embeddings") / original
    return Fields({**siblings, **given, "rope_type": kind}, found.where), warnings


def _overlaid(current: Fields | None, old: Fields | None, where: str) -> Fields:
    """Return rope_parameters, overlaid by a rope_scaling that is not empty."""
    if not old or not old.data:
        return current or Fields({}, where)
    if not current or not current.data:
        return old
    kept = {name: value for name, value in current.data.items() if not isinstance(value, dict)}
    kind = old.text("rope_type") or old.text("type") or current.text("rope_type")
    return Fields({**kept, **old.data, "rope_type": kind}, old.where)


def rotated(params: Fields, head_dim: int) -> int:
    """Return the number of rotated values per head, which is even."""
    part = params.number("partial_rotary_factor")
    n_rot = head_dim if part is None else int(head_dim * part)
    if not 0 < n_rot <= head_dim or n_rot % 2:
        raise ConfigError(
            f"{params.where}: partial_rotary_factor is {part}, which rotates {n_rot} of {head_dim} values"
        )
    return n_rot


def is_interleaved(config: Fields) -> bool:
    """Return True if the rotary pairs of a draft are adjacent rows of its checkpoint, not rows of two halves.

    vLLM reads the first key, llama.cpp's converter the second. The layout is the draft's own, not its target's.
    """
    stated = {name: flag for name in ("is_neox_style", "rope_is_neox_style") if (flag := config.flag(name)) is not None}
    if len(set(stated.values())) > 1:
        raise ConfigError(f"{config.where}: is_neox_style and rope_is_neox_style differ; correct one of them")
    return False in stated.values()


def llama3_factors(params: Fields, n_rot: int, precision: type[np.floating] = np.float64) -> np.ndarray:
    """Return divisors of the rotary frequencies, [n_rot / 2].

    Long wavelengths are stretched by `factor`, short ones kept, those between interpolated. precision: of the
    frequencies; llama.cpp's converter computes a target's in float32.
    """
    names = ("factor", "low_freq_factor", "high_freq_factor", _LENGTH, "rope_theta")
    factor, low, high, n_orig, base = (params.need_number(name) for name in names)
    if high <= low:
        raise ConfigError(f"{params.where}: high_freq_factor {high:g} must exceed low_freq_factor {low:g}")
    exponents = np.arange(0, n_rot, 2, dtype=precision) / precision(n_rot)
    turns = n_orig * (precision(1) / precision(base) ** exponents).astype(np.float64) / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - kept) / factor + kept)).astype(np.float32)


def proportional_factors(params: Fields, head: int) -> np.ndarray:
    """Return divisors of the rotary frequencies of Gemma 4's layers without a window, [head / 2].

    The frequencies are those of a whole head, and a part of its pairs is rotated.
    """
    part = params.number("partial_rotary_factor")
    n_pairs = int((1.0 if part is None else part) * head // 2)
    if not 0 < n_pairs <= head // 2:
        raise ConfigError(f"{params.where}: partial_rotary_factor is {part}, expected a number from 0 to 1")
    params.require("factor", 1)
    return np.where(np.arange(head // 2) < n_pairs, 1, _UNROTATED).astype(np.float32)


def linear_keys(params: Fields) -> dict[str, Any]:
    return {"rope.scaling.type": "linear", "rope.scaling.factor": _factor(params)}


def yarn_keys(params: Fields) -> dict[str, Any]:
    n_orig = int(params.need_number(_LENGTH))
    return {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": _factor(params),
        "rope.scaling.original_context_length": n_orig,
    }


def _factor(params: Fields) -> float:
    factor = params.need_number("factor")
    if factor < 1:
        raise ConfigError(f"{params.where}: factor is {factor:g}, expected a number of at least 1")
    return factor


def target_keys(config: Fields, params: Fields, factors: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the scaling keys of a target. factors: types that the family's graph reads as a tensor.

    "dynamic" scales beyond max_position_embeddings only, which is the context of the file. llama.cpp reads the keys of
    YaRN's betas for a few other families only.
    """
    kind = params.text("rope_type")
    if kind in ("default", "mrope", "dynamic", *factors):
        return {}
    if kind == "linear":
        return linear_keys(params)
    if kind != "yarn":
        known = ", ".join(("default", "linear", "dynamic", "yarn", *factors))
        raise ConfigError(f"{config.where}: rope_type {kind!r} is not supported for this architecture ({known})")
    for name, fixed in (("truncate", True), ("beta_fast", 32.0), ("beta_slow", 1.0)):
        params.require(name, fixed)
    names = {"attention_factor": "attn_factor", "beta_fast": "beta_fast", "beta_slow": "beta_slow"}
    stated = {key: params.need_number(name) for name, key in names.items() if params.get(name) is not None}
    return {**yarn_keys(params), **_yarn_scale(params), **{f"rope.scaling.yarn_{k}": v for k, v in stated.items()}}


def _yarn_scale(params: Fields) -> dict[str, Any]:
    """Return the key for another magnitude than YaRN's usual one, by which llama.cpp multiplies by itself.

    llama.cpp reads rope.scaling.yarn_attn_factor too, and replaces its value when the type is YaRN.
    """
    magnitude, usual = _yarn_magnitude(params), 1 + 0.1 * math.log(_factor(params))
    return {} if math.isclose(magnitude, usual) else {"rope.scaling.attn_factor": magnitude / usual}


@dataclass(frozen=True)
class Rope:
    """RoPE settings of a draft: GGUF keys without the architecture, factors [n_rot / 2] or None, and warnings."""

    base: float
    n_rot: int
    kind: str
    keys: dict[str, Any] = field(default_factory=dict)
    factors: np.ndarray | None = None
    warnings: tuple[str, ...] = ()


def draft_rope(layer: Fields, head_dim: int, n_ctx: int, base: float | None = None) -> Rope:
    """Return the rotary settings of a draft. `base` overrides the configured one; n_ctx is max_position_embeddings."""
    params, warnings = parameters(layer, prefer="sliding_attention")
    if base is None:
        base = params.number("rope_theta")
    if base is None:
        base = DEFAULT_BASE
        warnings.append(f"no RoPE base in config.json: {DEFAULT_BASE:g}, which the trainers hard-code")
    if base <= 1:
        raise ConfigError(f"{layer.where}: rope_theta is {base:g}, expected a number above 1")
    kind = params.text("rope_type") or "default"
    n_rot = head_dim if kind == "proportional" else rotated(params, head_dim)
    if n_rot != head_dim:
        warnings.append(f"{n_rot} of {head_dim} values of a head are rotated (partial_rotary_factor), as vLLM does")
    if kind == "dynamic":
        warnings.append(f"dynamic RoPE scaling begins beyond {n_ctx} tokens; the GGUF describes it up to there")
    keys, factors = _draft_scaling(Fields({**params.data, "rope_theta": base}, params.where), kind, n_rot)
    return Rope(base, n_rot, kind, {**keys, **_draft_sections(params, n_rot)}, factors, tuple(warnings))


def sections(params: Fields, default: list[int] | None = None) -> list[int]:
    """Return the rotary pairs for time, height, width, and a fourth, which is zero.

    Raises `ConfigError` if none are given.
    """
    named = params.get("mrope_section", default)
    if not isinstance(named, list) or not 3 <= len(named) <= 4 or any(type(n) is not int or n < 0 for n in named):
        raise ConfigError(f"{params.where}: mrope_section is {named!r}, expected three numbers")
    return [*named, 0][:4]


def target_sections(params: Fields, n_rot: int, default: list[int] | None = None) -> list[int]:
    """Return the sections by which llama.cpp assigns the pairs of a target as transformers does.

    Both interleave height and width from the second and the third pair on. What lies beyond the last pair is cut off.
    Raises `ConfigError` if they differ in a pair.
    """
    named, n_pairs = sections(params, default), n_rot // 2
    written = _clipped(named, n_pairs)
    left = [] if named[:3] == QWEN3VL_SECTIONS else unassigned_pairs(written, n_pairs)
    if left:
        raise ConfigError(
            f"{params.where}: mrope_section {named[:3]} does not cover the {n_pairs} rotated pairs; llama.cpp would "
            f"not rotate pair {left[0]}"
        )
    return written


def _clipped(named: list[int], n_pairs: int) -> list[int]:
    """Return interleaved sections without what lies beyond the last pair; the time has the remaining pairs."""
    height, width = min(named[1], (n_pairs + 1) // 3), min(named[2], n_pairs // 3)
    return [n_pairs - height - width, height, width, 0]


def _draft_sections(params: Fields, n_rot: int) -> dict[str, Any]:
    """Return M-RoPE keys, which llama.cpp does not read for a draft: in text all parts of a position are equal."""
    if params.get("mrope_section") is None:
        return {}
    named = sections(params)
    if params.flag("mrope_interleaved") and sum(named) > n_rot // 2:
        named = _clipped(named, n_rot // 2)
    if not 0 < sum(named) <= n_rot // 2:
        raise ConfigError(f"{params.where}: mrope_section is {named[:3]}, but {n_rot // 2} pairs are rotated")
    interleaved = {"rope.mrope_interleaved": True} if params.flag("mrope_interleaved") else {}
    return {"rope.dimension_sections": named, **interleaved}


def _draft_scaling(params: Fields, kind: str, n_rot: int) -> tuple[dict[str, Any], np.ndarray | None]:
    if kind in ("default", "mrope", "none", "dynamic"):
        return {}, None
    if kind == "proportional":
        return {}, proportional_factors(params, n_rot)
    if kind not in ("linear", "llama3", "yarn"):
        known = "default, linear, dynamic, llama3, yarn, proportional"
        raise ConfigError(f"{params.where}: RoPE type {kind!r} is not supported ({known})")
    _factor(params)
    if kind == "linear":
        return linear_keys(params), None
    if kind == "llama3":
        return {}, llama3_factors(params, n_rot)
    return _draft_yarn(params, n_rot)


def _draft_yarn(params: Fields, n_rot: int) -> tuple[dict[str, Any], np.ndarray | None]:
    """Return keys, or factors if llama.cpp's fixed betas (32, 1) and rounding do not fit."""
    factor = _factor(params)
    fast, slow = params.number("beta_fast") or 32.0, params.number("beta_slow") or 1.0
    if (fast, slow) == (32.0, 1.0) and params.flag("truncate") is not False:
        return {**yarn_keys(params), **_yarn_scale(params)}, None
    if not 0 < slow < fast:
        raise ConfigError(f"{params.where}: beta_fast {fast:g} must exceed beta_slow {slow:g}, and both be positive")
    stretched = _yarn_stretched(params, n_rot, fast, slow)
    factors = (1 / (stretched / factor + 1 - stretched)).astype(np.float32)
    return {"rope.scaling.type": "none", "rope.scaling.attn_factor": _yarn_magnitude(params)}, factors


def _yarn_stretched(params: Fields, n_rot: int, fast: float, slow: float) -> np.ndarray:
    """Return values from 0 to 1, [n_rot / 2]: the part of each pair's frequency that is divided by the factor."""
    n_orig, base = params.need_number(_LENGTH), params.need_number("rope_theta")

    def pair(turns: float) -> float:  # index of the pair with this number of turns over the original context
        return n_rot * math.log(n_orig / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair(fast), pair(slow)
    if params.flag("truncate") is not False:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, n_rot - 1)
    return np.clip((np.arange(n_rot // 2) - low) / max(high - low, 0.001), 0, 1)


def _yarn_magnitude(params: Fields) -> float:
    """Return the factor of queries and keys."""
    if params.get("attention_factor") is not None:
        return params.need_number("attention_factor")
    factor, mscale, all_dim = _factor(params), params.number("mscale"), params.number("mscale_all_dim")
    if mscale and all_dim:
        return (0.1 * mscale * math.log(factor) + 1) / (0.1 * all_dim * math.log(factor) + 1)
    return 0.1 * math.log(factor) + 1
