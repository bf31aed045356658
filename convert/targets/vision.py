"""The vision encoder of Qwen3-VL and Qwen3.5, for llama.cpp's mmproj file."""

from __future__ import annotations

import math
from typing import Any

from llama_eagle.convert.table import Dims, Row, Transform, whole_blocks
from llama_eagle.convert.targets.config import ModelConfig
from llama_eagle.convert.targets.conversion import Block, Conversion
from llama_eagle.errors import ConfigError

ARCHITECTURES = (
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
    "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
)


def _frame(index: int) -> Transform:
    """Return one temporal half of the 3-D patch convolution: llama.cpp sums two 2-D ones."""
    return Transform(lambda v, dims: v[:, :, index], lambda s, dims: (*s[:2], *s[3:]))


def _linear(source: str, target: str, rows: str, columns: str) -> tuple[Row, Row]:
    return (
        Row(f"{source}.weight", f"{target}.weight", (rows, columns)),
        Row(f"{source}.bias", f"{target}.bias", (rows,)),
    )


def _norm(source: str, target: str, width: str) -> tuple[Row, Row]:
    return Row(f"{source}.weight", f"{target}.weight", (width,)), Row(f"{source}.bias", f"{target}.bias", (width,))


_PATCHES = ("embd", "channels", "2", "patch", "patch")

SECTIONS = {
    "model": (
        Row("visual.patch_embed.proj.weight", "v.patch_embd.weight", _PATCHES, _frame(0)),
        Row("visual.patch_embed.proj.weight", "v.patch_embd.weight.1", _PATCHES, _frame(1)),
        Row("visual.patch_embed.proj.bias", "v.patch_embd.bias", ("embd",)),
        Row("visual.pos_embed.weight", "v.position_embd.weight", ("positions", "embd")),
        *_norm("visual.merger.norm", "v.post_ln", "embd"),
        *_linear("visual.merger.linear_fc1", "mm.0", "merged", "merged"),
        *_linear("visual.merger.linear_fc2", "mm.2", "out", "merged"),
    ),
    "block": (
        *_norm("norm1", "ln1", "embd"),
        *_norm("norm2", "ln2", "embd"),
        *_linear("attn.qkv", "attn_qkv", "3*embd", "embd"),
        *_linear("attn.proj", "attn_out", "embd", "embd"),
        *_linear("mlp.linear_fc1", "ffn_up", "ff", "embd"),
        *_linear("mlp.linear_fc2", "ffn_down", "embd", "ff"),
    ),
    "deepstack": (
        *_norm("norm", "norm", "merged"),
        *_linear("linear_fc1", "fc1", "merged", "merged"),
        *_linear("linear_fc2", "fc2", "out", "merged"),
    ),
}


def deepstack_layers(config: ModelConfig) -> list[int]:
    """Return the vision blocks whose output is added in the text model's first blocks."""
    depth = config.need_integer("depth")
    indexes = config.get("deepstack_visual_indexes", [])
    if not isinstance(indexes, list) or any(type(i) is not int or not 0 <= i < depth for i in indexes):
        raise ConfigError(f"{config.where}: deepstack_visual_indexes {indexes!r}, {depth} blocks")
    return indexes


def _blocks(config: ModelConfig) -> list[Block]:
    blocks = [Block("block", f"visual.blocks.{i}.", f"v.blk.{i}.") for i in range(config.need_integer("depth"))]
    for i, index in enumerate(deepstack_layers(config)):
        blocks.append(Block("deepstack", f"visual.deepstack_merger_list.{i}.", f"v.deepstack.{index}."))
    return blocks


def _require_rotation(config: ModelConfig) -> None:
    """Refuse another rotation of patches than libmtmd's, whose base is fixed."""
    vision = config.root.child("vision_config")
    if vision is None or (rope := vision.child("rope_parameters")) is None:
        return
    rope.require("rope_theta", 10000)
    rope.require("rope_type", "axial", "default")
    rope.require("partial_rotary_factor", 1)


def _dims(config: ModelConfig) -> dict[str, int]:
    config.require("temporal_patch_size", 2)
    config.require("hidden_act", "gelu_pytorch_tanh", "gelu")
    config.require("in_channels", 3)
    _require_rotation(config)
    embd, merge = config.need_integer("hidden_size"), config.need_integer("spatial_merge_size")
    text = config.root.child("text_config")
    out = config.need_integer("out_hidden_size")
    if text is None or text.get("hidden_size") != out:
        raise ConfigError(f"{config.where}: vision output {out} is not the text's hidden_size")
    return {
        "embd": embd,
        "ff": config.need_integer("intermediate_size"),
        "channels": config.need_integer("in_channels"),
        "patch": config.need_integer("patch_size"),
        "positions": config.need_integer("num_position_embeddings"),
        "merge": merge,
        "merged": embd * merge * merge,
        "out": out,
        "n_layer": config.need_integer("depth"),
        "experts": 0,
    }


def _keys(config: ModelConfig, dims: Dims) -> dict[str, Any]:
    """Return keys with the file's own names: "clip" has no single prefix."""
    text = config.root.child("text_config")
    deepstack = deepstack_layers(config)
    epsilon = text.need_epsilon("rms_norm_eps") if text and text.get("rms_norm_eps") is not None else 1e-6
    return {
        "has_vision_encoder": True,
        "projector_type": "qwen3vl_merger",
        "use_gelu": True,
        "vision.projection_dim": dims["out"],
        "vision.image_size": math.isqrt(dims["positions"]) * dims["patch"],
        "vision.patch_size": dims["patch"],
        "vision.embedding_length": dims["embd"],
        "vision.feed_forward_length": dims["ff"],
        "vision.block_count": dims["n_layer"],
        "vision.attention.head_count": config.need_integer("num_heads"),
        "vision.attention.layer_norm_epsilon": epsilon,
        "vision.spatial_merge_size": dims["merge"],
        "vision.is_deepstack_layers": [i in deepstack for i in range(dims["n_layer"])],
    }


def vision_type(name: str, shape: tuple[int, ...], outtype: str) -> str:
    """Return the type of a tensor in an mmproj of `outtype`, by llama.cpp's rules."""
    if len(shape) > 1 and ".patch_embd.weight" in name:
        return "f16" if outtype == "f16" else "f32"
    if len(shape) <= 1 or "position_embd" in name:
        return "f32"
    return whole_blocks(shape, outtype)


CONVERSION = Conversion(
    arch="clip",
    architectures=ARCHITECTURES,
    dims=_dims,
    keys=_keys,
    blocks=_blocks,
    sections=SECTIONS,
    dropped=lambda name: None if name.startswith("visual.") else "text model",
)
