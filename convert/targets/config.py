"""config.json, read with care: a dimension is there and sane, or the conversion ends with its name."""

from __future__ import annotations

from typing import Any

from llama_eagle.errors import ConfigError

# Largest values that are believed: beyond them a damaged file would cost memory before its tensors are looked at.
_LIMIT = 1 << 31
_LIMITS = {"num_hidden_layers": 512, "depth": 512, "num_experts": 4096}


class ModelConfig:
    """The text part of a configuration (the root's fields, overlaid by text_config), and where it came from."""

    def __init__(self, config: dict[str, Any], where: str, part: str = "text_config") -> None:
        inner = config.get(part) or {}
        if not isinstance(inner, dict):
            raise ConfigError(f"{where}: config.json: {part} is not an object")
        self.where = where
        self.root = config
        self.values: dict[str, Any] = {**config, **inner}
        self.rope = self._rope()

    def _rope(self) -> dict[str, Any]:
        """RoPE settings under today's names: rope_parameters, else rope_scaling with rope_theta beside it."""
        rope = self.values.get("rope_parameters") or self.values.get("rope_scaling") or {}
        if not isinstance(rope, dict):
            raise ConfigError(f"{self.where}: config.json: rope_parameters is not an object")
        rope = dict(rope.get("full_attention", rope))
        rope.setdefault("rope_type", rope.pop("type", "default"))
        for name in ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings"):
            if name not in rope and self.values.get(name) is not None:
                rope[name] = self.values[name]
        return rope

    def get(self, name: str, default: Any = None) -> Any:
        value = self.values.get(name)
        return default if value is None else value

    def integer(self, name: str, default: int | None = None) -> int:
        """A positive integer; missing without a default, or out of range, is an error."""
        value = self.get(name, default)
        if value is None:
            raise ConfigError(f"{self.where}: config.json lacks {name}")
        limit = _LIMITS.get(name, _LIMIT)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= limit:
            raise ConfigError(f"{self.where}: config.json: {name} is {value!r}, expected an integer of 1 to {limit}")
        return value

    def number(self, name: str, source: dict[str, Any] | None = None) -> float:
        """A positive number, of `source` (a nested object) if given."""
        value = (self.values if source is None else source).get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e30:
            raise ConfigError(f"{self.where}: config.json: {name} is {value!r}, expected a positive number")
        return float(value)

    def layer_types(self) -> list[str]:
        """Kind of each block, "linear_attention" or "full_attention"."""
        n_layer = self.integer("num_hidden_layers")
        interval = self.integer("full_attention_interval", 4)
        default = ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(n_layer)]
        types = self.get("layer_types", default)
        if not isinstance(types, list) or len(types) != n_layer:
            raise ConfigError(f"{self.where}: config.json: layer_types must have num_hidden_layers ({n_layer}) entries")
        if unknown := set(map(str, types)) - {"linear_attention", "full_attention"}:
            raise ConfigError(f"{self.where}: config.json: layer_types {sorted(unknown)} are not supported")
        return types

    def require(self, name: str, *allowed: Any) -> None:
        """Refuses a value that this architecture's graph in llama.cpp does not implement; absent is fine."""
        value = self.values.get(name)
        if value is not None and value not in allowed:
            raise ConfigError(
                f"{self.where}: config.json: {name} is {value!r}, supported: {', '.join(map(repr, allowed))}"
            )


def attention_dims(config: ModelConfig) -> dict[str, int]:
    """vocab, embd, and the rows of q, k and v."""
    embd, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    head = config.integer("head_dim", embd // heads or None)
    kv_heads = config.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise ConfigError(f"{config.where}: config.json: {heads} attention heads do not divide into {kv_heads} groups")
    return {
        "vocab": config.integer("vocab_size"),
        "embd": embd,
        "n_layer": config.integer("num_hidden_layers"),
        "heads": heads,
        "kv_heads": kv_heads,
        "head": head,
        "q": heads * head,
        "kv": kv_heads * head,
        "experts": 0,
    }


def dense_dims(config: ModelConfig) -> dict[str, int]:
    """attention_dims and the width of the feed-forward layer."""
    config.require("hidden_act", "silu")
    return {**attention_dims(config), "ff": config.integer("intermediate_size")}


def moe_dims(config: ModelConfig) -> dict[str, int]:
    """attention_dims and the expert count and widths."""
    config.require("hidden_act", "silu")
    config.require("decoder_sparse_step", 1)
    config.require("mlp_only_layers", [])
    config.require("norm_topk_prob", True)  # llama.cpp's graphs always normalize the chosen experts' weights
    experts = config.get("num_experts", config.get("num_local_experts"))
    config.values["num_experts"] = experts
    return {
        **attention_dims(config),
        "experts": config.integer("num_experts"),
        "expert_ff": config.integer("moe_intermediate_size"),
    }


def linear_dims(config: ModelConfig) -> dict[str, int]:
    """Sizes of the Gated DeltaNet blocks; head counts must divide."""
    k_heads, v_heads = config.integer("linear_num_key_heads"), config.integer("linear_num_value_heads")
    k_head, v_head = config.integer("linear_key_head_dim"), config.integer("linear_value_head_dim")
    if v_heads % k_heads:
        raise ConfigError(f"{config.where}: config.json: {v_heads} value heads do not divide into {k_heads} key heads")
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
        "conv": config.integer("linear_conv_kernel_dim"),
    }


def common_keys(config: ModelConfig, dims: Any) -> dict[str, Any]:
    """Keys of every family, without the architecture prefix."""
    keys: dict[str, Any] = {
        "context_length": config.integer("max_position_embeddings"),
        "embedding_length": dims["embd"],
        "attention.head_count": dims["heads"],
        "attention.head_count_kv": dims["kv_heads"],
        "attention.layer_norm_rms_epsilon": config.number("rms_norm_eps"),
        "rope.freq_base": config.number("rope_theta", config.rope),
        **_rope_scaling(config),
    }
    if config.get("intermediate_size") is not None:
        keys["feed_forward_length"] = config.integer("intermediate_size")
    if config.get("head_dim") is not None:
        keys["attention.key_length"] = keys["attention.value_length"] = dims["head"]
    return keys


def moe_keys(config: ModelConfig, dims: Any) -> dict[str, Any]:
    keys = {
        "expert_count": dims["experts"],
        "expert_used_count": config.integer("num_experts_per_tok"),
        "expert_feed_forward_length": dims["expert_ff"],
    }
    if "shared_ff" in dims:
        keys["expert_shared_feed_forward_length"] = dims["shared_ff"]
    return keys


def linear_keys(config: ModelConfig, dims: Any) -> dict[str, Any]:
    """Keys of the Gated DeltaNet blocks. The list of recurrent blocks is completed with MTP blocks by the caller."""
    factor = config.number("partial_rotary_factor", config.rope)
    return {
        "ssm.conv_kernel": dims["conv"],
        "ssm.state_size": dims["k_head"],
        "ssm.group_count": dims["k_heads"],
        "ssm.time_step_rank": dims["v_heads"],
        "ssm.inner_size": dims["lin_v"],
        "attention.recurrent_layers": [kind == "linear_attention" for kind in config.layer_types()],
        "full_attention_interval": config.integer("full_attention_interval", 4),
        "rope.dimension_count": int(dims["head"] * factor),
    }


def mrope_sections(config: ModelConfig, default: list[int] | None = None) -> list[int]:
    """Rotary pairs for time, height, width, and a fourth that is zero."""
    sections = config.rope.get("mrope_section", default)
    if (
        not isinstance(sections, list)
        or not 3 <= len(sections) <= 4
        or any(type(n) is not int or n < 0 for n in sections)
    ):
        raise ConfigError(f"{config.where}: config.json: mrope_section is {sections!r}, expected three numbers")
    return [*sections, 0][:4]


def _rope_scaling(config: ModelConfig) -> dict[str, Any]:
    rope, kind = config.rope, config.rope["rope_type"]
    if kind in ("default", "mrope", "llama3"):  # llama3's factors are a tensor, rope_freqs.weight
        return {}
    if kind == "linear":
        return {"rope.scaling.type": "linear", "rope.scaling.factor": config.number("factor", rope)}
    if kind != "yarn":
        raise ConfigError(
            f"{config.where}: config.json: rope_type {kind!r} is not supported (default, linear, yarn, llama3)"
        )
    original = rope.get("original_max_position_embeddings")
    if type(original) is not int or original <= 0:
        raise ConfigError(
            f"{config.where}: config.json: yarn needs original_max_position_embeddings, found {original!r}"
        )
    keys = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": config.number("factor", rope),
        "rope.scaling.original_context_length": original,
    }
    names = {"attention_factor": "attn_factor", "beta_fast": "beta_fast", "beta_slow": "beta_slow"}
    for name, key in names.items():
        if rope.get(name) is not None:
            keys[f"rope.scaling.yarn_{key}"] = config.number(name, rope)
    return keys


def hybrid_kinds(config: ModelConfig) -> list[str]:
    """Block kinds of a model with Gated DeltaNet blocks."""
    return ["linear" if kind == "linear_attention" else "full" for kind in config.layer_types()]


def full_attention(config: ModelConfig) -> list[str]:
    """Block kinds of a model whose blocks are all alike; a sliding window is refused, llama.cpp would ignore it."""
    config.require("use_sliding_window", False)
    n_layer = config.integer("num_hidden_layers")
    if config.get("layer_types") and config.layer_types() != ["full_attention"] * n_layer:
        raise ConfigError(f"{config.where}: config.json: layer_types other than full_attention are not supported")
    return ["full"] * n_layer
