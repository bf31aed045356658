"""Checks of vision encoders (mmproj files) of Qwen3-VL and Qwen3.5.

Source of the table: llama.cpp's tools/mtmd/clip.cpp (load_hparams, load_tensors) and models/qwen3vl.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from llama_eagle.gguf.header import ArrayRef, Header
from llama_eagle.gguf.validate import check_general
from llama_eagle.gguf.validate.keys import check_keys
from llama_eagle.gguf.validate.table import MAX_LAYERS, Block, Key, Tensor, check_tensors, unknown_names, vector

MAX_SIDE = 1 << 16  # pixels of an image or a patch
MAX_WIDTH = 1 << 20
MERGE = 2  # patches per side that form one row: the graph supports no other number
F16 = 1
PREFIX = "clip."
KEYS = (
    Key("has_vision_encoder", "bool", required=True),
    Key("has_audio_encoder", "bool"),
    Key("has_gen_audio_encoder", "bool"),
    Key("projector_type", "string"),
    Key("use_gelu", "bool"),
    Key("use_silu", "bool"),
    Key("minicpmv_version", "i32"),
    Key("minicpmv_query_num", "u32", 0, MAX_WIDTH),
    Key("vision.projector_type", "string"),
    Key("vision.embedding_length", "u32", 1, MAX_WIDTH, required=True),
    Key("vision.feed_forward_length", "u32", 1, MAX_WIDTH, required=True),
    Key("vision.block_count", "u32", 1, MAX_LAYERS, required=True),
    Key("vision.projection_dim", "u32", 1, MAX_WIDTH, required=True),
    Key("vision.attention.head_count", "u32", 1, MAX_WIDTH, required=True),
    Key("vision.attention.head_count_kv", "u32", 1, MAX_WIDTH),
    Key("vision.attention.head_dim", "u32", 1, MAX_WIDTH),
    Key("vision.attention.layer_norm_epsilon", "f32", 0, 1, required=True),
    Key("vision.image_size", "u32", 1, MAX_SIDE, required=True),
    Key("vision.patch_size", "u32", 1, MAX_SIDE, required=True),
    Key("vision.image_min_pixels", "u32", 0, 1 << 30),
    Key("vision.image_max_pixels", "u32", 0, 1 << 30),
    Key("vision.spatial_merge_size", "u32", MERGE, MERGE),
    Key("vision.n_wa_pattern", "u32", 0, MAX_LAYERS),
    Key("vision.mm_patch_merge_type", "string"),
    Key("vision.is_deepstack_layers", "bool[]"),
    Key("vision.image_mean", "f32[]", -1e3, 1e3, required=True),
    Key("vision.image_std", "f32[]", 1e-6, 1e3, required=True),
    Key("vision.feature_layer", "i32[]", 0, MAX_LAYERS),
    Key("vision.image_grid_pinpoints", "i32[]", 1, MAX_SIDE),
)
CHANNELS = 3


def _linear(name: str, columns: str, rows: str) -> tuple[Tensor, Tensor]:
    return Tensor(f"{name}.weight", (columns, rows)), vector(f"{name}.bias", rows)


def _norm(name: str, width: str, *, required: bool = True) -> tuple[Tensor, Tensor]:
    return vector(f"{name}.weight", width, required), vector(f"{name}.bias", width, required)


# Sizes: embd, ff, patch, positions, merged (a row of 2 x 2 patches), out (a row of the text model).
MODEL = (
    Tensor("v.patch_embd.weight", ("patch", "patch", "channels", "embd")),
    Tensor("v.patch_embd.weight.1", ("patch", "patch", "channels", "embd")),
    vector("v.patch_embd.bias", "embd"),
    Tensor("v.position_embd.weight", ("embd", "positions"), type=0),
    *_norm("v.post_ln", "embd", required=False),
    *_linear("mm.0", "merged", "merged"),
    *_linear("mm.2", "merged", "out"),
)
BLOCK = (
    *_norm("ln1", "embd"),
    *_norm("ln2", "embd"),
    *_linear("attn_qkv", "embd", "3*embd"),
    *_linear("attn_out", "embd", "embd"),
    *_linear("ffn_up", "embd", "ff"),
    *_linear("ffn_down", "ff", "embd"),
)
DEEPSTACK = (*_norm("norm", "merged"), *_linear("fc1", "merged", "merged"), *_linear("fc2", "merged", "out"))


def check_encoder(header: Header) -> Iterator[str]:
    """Yield every reason why llama.cpp cannot run the encoder."""
    faults = [*check_general(header), *check_keys(header, KEYS, prefix=PREFIX)]
    faults = faults or [*_check_numbers(header)]
    yield from faults
    if faults:
        return
    blocks, sizes = _blocks(header), _sizes(header)
    yield from check_tensors(blocks, sizes, header.tensors)
    if not math.isqrt(sizes["positions"]) ** 2 == sizes["positions"] > 0:
        yield f"the tensor v.position_embd.weight has {sizes['positions']} positions, which is not a square number"
    for name in ("v.patch_embd.weight", "v.patch_embd.weight.1"):
        if name in header.tensors and header.tensors[name].type_id not in (0, F16):
            yield f"the tensor {name} is {header.tensors[name].type_name}, it must be F32 or F16"
    if unknown := [name for name in unknown_names(blocks, header.tensors) if name.startswith(("v.", "mm."))]:
        yield f"it contains tensors that do not belong to this encoder: {', '.join(unknown[:3])}"


def _check_numbers(header: Header) -> Iterator[str]:
    width, heads = _number(header, "embedding_length"), _number(header, "attention.head_count")
    if not header.keys["clip.has_vision_encoder"]:
        yield "it has no vision encoder (clip.has_vision_encoder)"
    for kind in ("audio", "gen_audio"):
        if header.keys.get(f"clip.has_{kind}_encoder"):
            yield f"it has an audio encoder, which is not supported (clip.has_{kind}_encoder)"
    if width % heads or width // heads % 4:
        yield f"heads of {width}/{heads} values, which is not a multiple of 4 (clip.vision.attention.head_count)"
    if _number(header, "attention.head_count_kv", heads) != heads:
        yield "its key heads differ from its heads (clip.vision.attention.head_count_kv)"
    if _number(header, "attention.head_dim", width // heads) != width // heads:
        yield "its heads do not divide its width (clip.vision.attention.head_dim)"
    for name in ("image_mean", "image_std"):
        if (count := header.keys[f"clip.vision.{name}"].count) != CHANNELS:
            yield f"the key clip.vision.{name} has {count} entries for {CHANNELS} channels"
    pattern = header.keys.get("clip.vision.is_deepstack_layers")
    stored = sum(f"v.deepstack.{i}.fc1.weight" in header.tensors for i in range(_number(header, "block_count")))
    if isinstance(pattern, ArrayRef) and sum(map(bool, header.read_array(pattern))) != stored:
        yield f"it has {stored} deepstack layers, clip.vision.is_deepstack_layers names others"
    if header.keys.get("clip.use_gelu") and header.keys.get("clip.use_silu"):
        yield "it has two activations (clip.use_gelu, clip.use_silu)"


def _number(header: Header, name: str, default: int = 0) -> int:
    return int(header.keys.get(f"clip.vision.{name}", default))


def _sizes(header: Header) -> dict[str, int]:
    width, positions = _number(header, "embedding_length"), header.tensors.get("v.position_embd.weight")
    return {
        "embd": width,
        "ff": _number(header, "feed_forward_length"),
        "patch": _number(header, "patch_size"),
        "channels": CHANNELS,
        "positions": positions.n_elements // width if positions else 0,
        "merged": width * MERGE * MERGE,
        "out": _number(header, "projection_dim"),
    }


def _blocks(header: Header) -> list[Block]:
    blocks = [Block(MODEL)]
    for i in range(_number(header, "block_count")):
        blocks.append(Block(BLOCK, f"v.blk.{i}."))
        if any(name.startswith(f"v.deepstack.{i}.") for name in header.tensors):
            blocks.append(Block(DEEPSTACK, f"v.deepstack.{i}."))
    return blocks
