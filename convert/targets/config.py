"""Sizes that families of targets read from config.json, and the keys that follow from them."""

from __future__ import annotations

from typing import Any

from llama_eagle.convert import rope
from llama_eagle.convert.source.config import Fields, head_size, key_value_heads
from llama_eagle.errors import ConfigError


class ModelConfig(Fields):
    """The text part of a configuration (the root's fields, overlaid by text_config), its RoPE, and the root."""

    def __init__(self, config: dict[str, Any], source: str, part: str = "text_config") -> None:
        root = Fields(config, f"{source}: config.json")
        inner = root.child(part)
        super().__init__({**config, **(inner.data if inner else {})}, root.where)
        self.root = root
        self.source = source
        self.rope = rope.parameters(self)[0]

    def layer_types(self) -> list[str]:
        """Return the kind of each block, "linear_attention" or "full_attention"."""
        n_layer = self.need_integer("num_hidden_layers")
        interval = self.need_integer("full_attention_interval", 4)
        default = ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(n_layer)]
        types = self.get("layer_types", default)
        if not isinstance(types, list) or len(types) != n_layer:
            raise ConfigError(f"{self.where}: layer_types must have num_hidden_layers ({n_layer}) entries")
        if unknown := set(map(str, types)) - {"linear_attention", "full_attention"}:
            raise ConfigError(f"{self.where}: layer_types {sorted(unknown)} are not supported")
        return types


def attention_dims(config: ModelConfig) -> dict[str, int]:
    """Return vocab, embd, and the rows of q, k and v."""
    embd, heads = config.need_integer("hidden_size"), config.need_integer("num_attention_heads")
    head, kv_heads = head_size(config, embd, heads), key_value_heads(config, heads)
    return {
        "vocab": config.need_integer("vocab_size"),
        "embd": embd,
        "n_layer": config.need_integer("num_hidden_layers"),
        "heads": heads,
        "kv_heads": kv_heads,
        "head": head,
        "q": heads * head,
        "kv": kv_heads * head,
        "experts": 0,
    }


def dense_dims(config: ModelConfig) -> dict[str, int]:
    """Return attention_dims and the width of the feed-forward layer."""
    config.require("hidden_act", "silu", "swish")
    return {**attention_dims(config), "ff": config.need_integer("intermediate_size")}


def moe_dims(config: ModelConfig) -> dict[str, int]:
    """Return attention_dims and the number and widths of experts."""
    config.require("hidden_act", "silu", "swish")
    config.require("decoder_sparse_step", 1)
    config.require("mlp_only_layers", [])
    config.require("norm_topk_prob", True)  # llama.cpp's graphs always normalize the chosen experts' weights
    name = "num_local_experts" if config.get("num_experts") is None else "num_experts"
    return {
        **attention_dims(config),
        "experts": config.need_integer(name),
        "expert_ff": config.need_integer("moe_intermediate_size"),
    }


def linear_dims(config: ModelConfig) -> dict[str, int]:
    """Return the sizes of the Gated DeltaNet blocks; head counts must divide.

    llama.cpp's graphs gate by SiLU, and the output of full attention by a sigmoid.
    """
    config.require("output_gate_type", "swish", "silu")
    config.require("attn_output_gate", True)
    if (epsilon := config.need_epsilon("rms_norm_eps")) > 1e-5:
        raise ConfigError(
            f"{config.where}: rms_norm_eps is {epsilon:g}, expected at most 1e-5: llama.cpp's DeltaNet blocks use it "
            "for queries and keys too, where transformers has 1e-6"
        )
    k_heads, v_heads = config.need_integer("linear_num_key_heads"), config.need_integer("linear_num_value_heads")
    k_head, v_head = config.need_integer("linear_key_head_dim"), config.need_integer("linear_value_head_dim")
    if v_heads % k_heads:
        raise ConfigError(f"{config.where}: {v_heads} value heads do not divide into {k_heads} key heads")
    lin_k, lin_v = k_heads * k_head, v_heads * v_head
    return {
        "k_heads": k_heads,
        "v_heads": v_heads,
        "v_head": v_head,
        "k_head": k_head,
        "lin_k": lin_k,
        "lin_v": lin_v,
        "lin_qkv": 2 * lin_k + lin_v,
        "lin_qkvz": 2 * lin_k + 2 * lin_v,
        "conv": config.need_integer("linear_conv_kernel_dim"),
    }


def common_keys(config: ModelConfig, dims: Any, rope_factors: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the keys of every family, without the architecture prefix. rope_factors: as in rope.target_keys()."""
    keys: dict[str, Any] = {
        "context_length": config.need_integer("max_position_embeddings"),
        "embedding_length": dims["embd"],
        "attention.head_count": dims["heads"],
        "attention.head_count_kv": dims["kv_heads"],
        "attention.layer_norm_rms_epsilon": config.need_epsilon("rms_norm_eps"),
        "rope.freq_base": config.rope.need_number("rope_theta"),
        **rope.target_keys(config, config.rope, rope_factors),
    }
    if config.get("intermediate_size") is not None:
        keys["feed_forward_length"] = config.need_integer("intermediate_size")
    if config.get("head_dim") is not None:
        keys["attention.key_length"] = keys["attention.value_length"] = dims["head"]
    return keys


def moe_keys(config: ModelConfig, dims: Any) -> dict[str, Any]:
    keys = {
        "expert_count": dims["experts"],
        "expert_used_count": config.need_integer("num_experts_per_tok"),
        "expert_feed_forward_length": dims["expert_ff"],
    }
    if "shared_ff" in dims:
        keys["expert_shared_feed_forward_length"] = dims["shared_ff"]
    return keys


def linear_keys(config: ModelConfig, dims: Any) -> dict[str, Any]:
    """Return the keys of the Gated DeltaNet blocks. The caller adds MTP blocks to the list of recurrent blocks."""
    recurrent = [kind == "linear_attention" for kind in config.layer_types()]
    params = Fields({"partial_rotary_factor": 0.25, **config.rope.data}, config.rope.where)  # transformers' default
    return {
        "ssm.conv_kernel": dims["conv"],
        "ssm.state_size": dims["k_head"],
        "ssm.group_count": dims["k_heads"],
        "ssm.time_step_rank": dims["v_heads"],
        "ssm.inner_size": dims["lin_v"],
        "attention.recurrent_layers": recurrent,
        **_interval(config, recurrent),
        "rope.dimension_count": rope.rotated(params, dims["head"]),
    }


def _interval(config: ModelConfig, recurrent: list[bool]) -> dict[str, int]:
    """Return the key for equal distances of full attention. llama.cpp reads the list of blocks first.

    transformers stores layer_types alone, and prefers it.
    """
    stated, found = config.integer("full_attention_interval"), [*recurrent, False].index(False) + 1
    for interval in (stated, found):
        if interval and recurrent == [(i + 1) % interval != 0 for i in range(len(recurrent))]:
            return {"full_attention_interval": interval}
    return {}


def full_attention(config: ModelConfig) -> list[str]:
    """Return the block kinds of a uniform model.

    A partial rotation and a sliding window below the context are refused, because llama.cpp's graphs ignore them.
    """
    config.rope.require("partial_rotary_factor", 1)
    n_layer, n_ctx = config.need_integer("num_hidden_layers"), config.need_integer("max_position_embeddings")
    size, kinds = _window(config), config.texts("layer_types")
    if len(kinds) not in (0, n_layer):
        raise ConfigError(f"{config.where}: layer_types must have num_hidden_layers ({n_layer}) entries")
    if unknown := set(kinds) - {"full_attention", "sliding_attention" if size else ""}:
        raise ConfigError(f"{config.where}: layer_types {sorted(unknown)} are not supported")
    first = config.number("max_window_layers") or 0
    if size and size < n_ctx and ("sliding_attention" in kinds or (not kinds and first < n_layer)):
        raise ConfigError(
            f"{config.where}: a sliding window of {size} tokens (use_sliding_window), which llama.cpp does not have "
            f"for this architecture; it is not needed with max_position_embeddings {size}"
        )
    return ["full"] * n_layer


def _window(config: ModelConfig) -> int | None:
    """Return the sliding window of the marked layers; null means none, and an absent one transformers' 4096."""
    stated = Fields({"sliding_window": 4096, **config.data}, config.where)
    return stated.integer("sliding_window") if config.flag("use_sliding_window") else None
