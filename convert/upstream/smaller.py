"""A configuration with the features of another one and few parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Config = dict[str, Any]

VOCABULARY = 512
WINDOW = 16  # tokens, fewer than the compared text has
UNLIMITED = 1 << 20  # tokens of a window, more than any compared text has
SLIDING = "sliding_window"
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth")
_HEADS = ("num_attention_heads", "n_head")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_SMALL = {  # key -> largest value
    "vocab_size": VOCABULARY,
    "vocab_size_per_layer_input": VOCABULARY,
    "intermediate_size": 256,
    "ffn_hidden_size": 256,
    "block_ff_dim": 256,
    "n_inner": 256,
    "moe_intermediate_size": 128,
    "shared_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
    "moe_shared_expert_intermediate_size": 128,
    "num_experts_per_tok": 4,
    "moe_k": 4,
    SLIDING: WINDOW,
    **dict.fromkeys(_EXPERTS, 16),
}
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_TIED = ("mamba", "ssm", "conv", "rwkv")  # sizes that depend on the model's width
_QUANTIZED = ("quantization_config", "quantization", "compression_config")
_ENCODERS = ("vision_config", "audio_config")
_DEEP = 12  # blocks of a model with experts


def smaller(config: Config) -> Config:
    """Return config.json with smaller sizes: vocabulary, width, feed-forward, experts, window, number of blocks.

    The size of a head, the kinds of blocks and everything else stays, because it selects what is computed. The number
    of blocks stays without experts and recurrent states, because llama.cpp derives rules from it, and the width with
    recurrent states.
    """
    found = {key: value for key, value in config.items() if key not in _QUANTIZED}
    if isinstance(found.get("text_config"), dict):
        found["text_config"] = smaller(found["text_config"])
    for part in _ENCODERS:
        if isinstance(found.get(part), dict):
            found[part] = {**found[part], **{key: 1 for key in _LAYERS if key in found[part]}}
    kept = {SLIDING: found[SLIDING]} if _sees_all(found) else {}
    found.update({key: _limited(found[key], limit) for key, limit in _SMALL.items() if key in found})
    found.update(kept)
    found.update({key: value for key, value in _TOKENS.items() if found.get(key) is not None})
    is_tied = any(word in key for key in found for word in _TIED)
    if is_tied or any(key in found for key in _EXPERTS):
        _cut_blocks(found)
    if not is_tied:
        _narrow(found)
    return found


def with_windows(config: Config, n_tokens: int) -> Config:
    """Return config.json with another length of its sliding windows."""
    found = {**config, **({SLIDING: n_tokens} if type(config.get(SLIDING)) is int else {})}
    if isinstance(found.get("text_config"), dict):
        found["text_config"] = with_windows(found["text_config"], n_tokens)
    return found


def _sees_all(config: Config) -> bool:
    """Return True for a window that is as long as the longest text, such as Phi-4-mini's."""
    window, longest = config.get(SLIDING), config.get("max_position_embeddings")
    return type(window) is int and type(longest) is int and window >= longest


def _limited(value: Any, limit: int) -> Any:
    if isinstance(value, list):  # by block
        return [_limited(each, limit) for each in value]
    return min(value, limit) if type(value) is int else value


def _first(config: Config, keys: Iterable[str]) -> str | None:
    return next((key for key in keys if type(config.get(key)) is int), None)


def _narrow(config: Config) -> None:
    """Leave four heads of the same size."""
    name, width = _first(config, _HEADS), config.get("hidden_size")
    if name is None or type(width) is not int or config[name] <= 4 or config[name] % 4:
        return
    heads, size = config[name], config.get("head_dim") or width // config[name]
    groups = config.get("num_key_value_heads")
    if type(groups) is int:
        config["num_key_value_heads"] = max(1, 4 * groups // heads)
    config[name], config["hidden_size"] = 4, 4 * size
    if config.get("query_pre_attn_scalar") == width / heads:
        config["query_pre_attn_scalar"] = size


def _cut_blocks(config: Config) -> None:
    """Leave the first blocks, at least one of each kind."""
    name = _first(config, _LAYERS)
    if name is None or config[name] <= _DEEP:
        return
    count, lists = config[name], [key for key, value in config.items() if _by_block(value, config[name])]
    kinds = max((config[key].index(kind) for key in lists for kind in _distinct(config[key])), default=0)
    periods = [
        v for k, v in config.items() if k.endswith(("_period", "_interval", "_pattern", "_step")) and type(v) is int
    ]
    dense = config.get("first_k_dense_replace") or 0
    left = min(count, max(_DEEP, kinds + 1, dense + 2, *(p + 1 for p in periods), 0))
    config[name] = left
    config.update({key: config[key][:left] for key in lists})


def _by_block(value: Any, count: int) -> bool:
    return isinstance(value, (list, str)) and len(value) == count


def _distinct(values: Any) -> list[Any]:
    return [value for i, value in enumerate(values) if value not in values[:i]]
