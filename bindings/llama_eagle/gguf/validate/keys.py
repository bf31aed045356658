"""Checks of keys: their types and ranges."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from llama_eagle.gguf.header import VALUE_TYPE_NAMES, ArrayRef, Header
from llama_eagle.gguf.validate.table import MAX_EXPERTS, MAX_LAYERS, MAX_WIDTH, Key

INT_MAX = 2**31 - 1

# Keys that llama.cpp reads for every architecture, with the types that it requires and the ranges that it asserts.
COMMON = (
    Key("context_length", "u32"),
    Key("embedding_length", "u32", 1, MAX_WIDTH),
    Key("block_count", "u32", 1, MAX_LAYERS),
    Key("nextn_predict_layers", "u32", 0, MAX_LAYERS - 1),
    Key("vocab_size", "u32", 0, INT_MAX),
    Key("feed_forward_length", "u32s", 0, MAX_WIDTH),
    Key("attention.head_count", "u32s", 0, MAX_WIDTH),
    Key("attention.head_count_kv", "u32s", 0, MAX_WIDTH),
    Key("attention.key_length", "u32", 0, MAX_WIDTH),
    Key("attention.value_length", "u32", 0, MAX_WIDTH),
    Key("attention.layer_norm_rms_epsilon", "f32", 0, 1),
    Key("attention.layer_norm_epsilon", "f32", 0, 1),
    Key("attention.causal", "bool"),
    Key("expert_count", "u32", 0, MAX_EXPERTS),
    Key("expert_used_count", "u32s", 0, MAX_EXPERTS),
    Key("expert_group_count", "u32", 0, MAX_EXPERTS),
    Key("expert_group_used_count", "u32", 0, MAX_EXPERTS),
    Key("expert_feed_forward_length", "u32s", 0, MAX_WIDTH),
    Key("expert_shared_feed_forward_length", "u32", 0, MAX_WIDTH),
    Key("rope.dimension_count", "u32", 0, MAX_WIDTH),
    Key("rope.freq_base", "f32", 0, 1e30),
    Key("rope.scaling.type", "string", choices=("none", "linear", "yarn", "longrope")),
    Key("rope.scaling.factor", "f32", 0, 1e6),
    Key("rope.scale_linear", "f32", 0, 1e6),
    Key("rope.scaling.attn_factor", "f32", 0, 1e6),
    Key("rope.scaling.original_context_length", "u32", 0, INT_MAX),
    Key("rope.scaling.finetuned", "bool"),
    Key("rope.scaling.yarn_attn_factor", "f32", 0, 1e6),
    Key("rope.scaling.yarn_beta_fast", "f32", 0, 1e6),
    Key("rope.scaling.yarn_beta_slow", "f32", 0, 1e6),
    Key("rope.scaling.yarn_ext_factor", "f32", -1, 1e6),
    Key("rope.scaling.yarn_log_multiplier", "f32", -1e6, 1e6),
    Key("pooling_type", "u32", 0, 4),
    Key("n_deepstack_layers", "u32", 0, MAX_LAYERS),
    Key("ssm.conv_kernel", "u32", 0, MAX_WIDTH),
    Key("ssm.inner_size", "u32", 0, MAX_WIDTH),
    Key("ssm.state_size", "u32", 0, MAX_WIDTH),
    Key("ssm.group_count", "u32", 0, MAX_WIDTH),
    Key("ssm.time_step_rank", "u32", 0, MAX_WIDTH),
)
GENERAL = (
    Key("general.architecture", "string"),
    Key("general.type", "string"),
    Key("general.name", "string"),
    Key("general.alignment", "u32", 1, 1 << 20),
    Key("general.file_type", "u32"),
    Key("general.quantization_version", "u32"),
    Key("split.no", "u16"),
    Key("split.count", "u16"),
    Key("split.tensors.count", "i32"),
)


def check_keys(header: Header, keys: tuple[Key, ...], *, prefix: str = "") -> Iterator[str]:
    """Yield a fault for every key of the table that has another type or value, or is missing though required."""
    for key in keys:
        name = prefix + key.name
        if name not in header.keys:
            if key.required:
                yield f"the key {name} is missing"
            continue
        if (found := kind_of(header, name)) not in _kinds(key.kind):
            yield f"the key {name} is {found}, it must be {' or '.join(_kinds(key.kind))}"
        elif (fault := _fault(header, name, key)) is not None:
            yield f"the key {name} {fault}"


def kind_of(header: Header, name: str) -> str:
    """Return the stored type of a key, as in VALUE_TYPE_NAMES; for an array, followed by []."""
    value = header.keys[name]
    if isinstance(value, ArrayRef):
        return f"{VALUE_TYPE_NAMES[value.type_id]}[]"
    return VALUE_TYPE_NAMES[header.key_types[name]]


def _kinds(kind: str) -> tuple[str, ...]:
    return ("u32", "u32[]", "i32[]") if kind == "u32s" else (kind,)


def _fault(header: Header, name: str, key: Key) -> str | None:
    value = header.keys[name]
    if isinstance(value, ArrayRef):
        n_layer = header.arch_key("block_count")
        if key.kind == "u32s" and value.count != n_layer:
            return f"has {value.count} entries for {n_layer} blocks"
        if math.isinf(key.low):
            return None
        return next((fault for entry in {*header.read_array(value)} if (fault := _outside(entry, key))), None)
    return _outside(value, key)


def _outside(value: Any, key: Key) -> str | None:
    if key.choices and value not in key.choices:
        return f"is {value!r:.60}, it must be one of {', '.join(key.choices)}"
    if isinstance(value, (bool, str)):
        return None
    if not math.isfinite(value) or not key.low <= value <= key.high:
        return f"is {value}, it must be in {key.low:g}..{key.high:g}"
    return None
