"""Checks of EAGLE-3 drafts, in the stock layout and in the extended one."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace

from llama_eagle.gguf.header import ArrayRef, Header, TensorInfo
from llama_eagle.gguf.names import PARALLEL, is_parallel
from llama_eagle.gguf.validate.keys import check_keys
from llama_eagle.gguf.validate.table import (
    I32,
    I64,
    MAX_CONTEXT,
    MAX_WIDTH,
    Block,
    Heads,
    Key,
    Tensor,
    check_heads,
    check_tensors,
    matrix,
    unknown_names,
    vector,
)

PREFIX = "eagle3."
MAX_BLOCKS, MAX_AUX, MAX_DEPTHS = 64, 64, 64  # limits of the extended layout
MASK_STATES, MASK_TOKEN = "fc.mask", "tokenizer.ggml.mask_token_id"  # of P-EAGLE

KEYS = (
    Key("context_length", "u32", 1, MAX_CONTEXT, required=True),
    Key("embedding_length", "u32", 1, MAX_WIDTH, required=True),
    Key("block_count", "u32", 1, MAX_BLOCKS, required=True),
    Key("feed_forward_length", "u32s", 1, MAX_WIDTH, required=True),
    Key("attention.head_count", "u32s", 1, MAX_WIDTH, required=True),
    Key("attention.head_count_kv", "u32s", 1, MAX_WIDTH),
    Key("attention.key_length", "u32", 1, MAX_WIDTH),
    Key("attention.value_length", "u32", 1, MAX_WIDTH),
    Key("attention.layer_norm_rms_epsilon", "f32", 0, 1, required=True),
    Key("target_hidden_size", "u32", 1, MAX_WIDTH, required=True),
    Key("norm_before_residual", "bool"),
    Key("norm_before_fc", "bool"),
    Key("norm_output", "bool"),
    Key("block_size", "u32", 1, MAX_DEPTHS),
    Key("final_logit_softcapping", "f32", 1e-6, 1e30),
    Key("attention.sliding_window", "u32", 1, MAX_CONTEXT),
    Key("attention.sliding_window_pattern", "bool[]"),
    Key("nextn_predict_layers", "u32", 0, 0),
    Key("expert_count", "u32", 0, 0),
    Key("rope.freq_base", "f32", 1e-6, 1e30),
    Key("rope.dimension_count", "u32", 2, MAX_WIDTH),
    Key("rope.mrope_interleaved", "bool"),
)

# Sizes: H draft width, T target width, AT fused width, V target vocabulary, D draft vocabulary, F FFN width, Q and K
# rows of the projections, d head, R rotary pairs, W input width of a block's attention.
MODEL = (
    matrix("fc.weight", "AT", "H"),
    vector("output_norm.weight", "H"),
    matrix("output.weight", "H", "D", required=False),
    matrix("token_embd.weight", "H", "V", required=False),
    Tensor("d2t", ("D",), required=False, type=I64),
    vector("rope_freqs.weight", "R", required=False),
)
BLOCK = (
    vector("attn_norm.weight", "H"),
    vector("ffn_norm.weight", "H"),
    matrix("attn_q.weight", "W", "Q"),
    matrix("attn_k.weight", "W", "K"),
    matrix("attn_v.weight", "W", "K"),
    matrix("attn_output.weight", "Q", "H"),
    matrix("ffn_gate.weight", "H", "F"),
    matrix("ffn_up.weight", "H", "F"),
    matrix("ffn_down.weight", "F", "H"),
)
FIRST_BLOCK = (vector("attn_norm_2.weight", "H"),)
EXTENDED_MODEL = (
    Tensor("extended", ("1",), type=I32),
    vector("fc.bias", "H", required=False),
    vector(MASK_STATES, "AT", required=False),
)
EXTENDED_BLOCK = (
    vector("attn_q.bias", "Q", required=False),
    vector("attn_k.bias", "K", required=False),
    vector("attn_v.bias", "K", required=False),
    vector("attn_output.bias", "H", required=False),
    vector("attn_q_norm.weight", "d", required=False),
    vector("attn_k_norm.weight", "d", required=False),
)
GEMMA_NORMS = (
    vector("post_attention_norm.weight", "H"),
    vector("post_ffw_norm.weight", "H"),
    vector("layer_output_scale.weight", "1"),
)


def check_draft(header: Header) -> Iterator[str]:
    """Yield every reason why the file is not a draft that can run, with any target."""
    faults = [*check_keys(header, KEYS, prefix=PREFIX), *_check_layers(header)]
    yield from faults
    if faults:
        return  # tensors cannot be checked against wrong sizes
    yield from _check_attention(header)
    sizes = _sizes(header)
    head = header.tensors.get("output.weight")
    if "d2t" not in header.tensors and head is not None and head.n_elements != sizes["H"] * sizes["V"]:
        n_rows = head.n_elements // sizes["H"]
        yield f"its head has {n_rows} rows, the vocabulary {sizes['V']} tokens, and there is no d2t map"
    yield from check_tensors(_blocks(header, sizes), sizes, header.tensors)
    yield from _check_layout(header, sizes)
    yield from check_map(header, sizes)


def is_extended(header: Header) -> bool:
    return "extended" in header.tensors


def _check_layers(header: Header) -> Iterator[str]:
    layers = header.keys.get("eagle3.target_layers")
    if not isinstance(layers, ArrayRef):
        yield "it has no target layers (eagle3.target_layers)"
    elif layers.type_id not in (4, 5) or not 0 < layers.count <= MAX_AUX:
        yield f"the key eagle3.target_layers is not an array of 1 to {MAX_AUX} 32-bit integers"
    elif layers.count != 3 and not is_extended(header):
        yield f"eagle3.target_layers has {layers.count} layers, but the file is not marked as extended layout"


def _check_attention(header: Header) -> Iterator[str]:
    n_head = header.number("attention.head_count")
    key, value = (
        header.number(f"attention.{name}_length", header.number("embedding_length") // n_head)
        for name in ("key", "value")
    )
    n_rot = header.number("rope.dimension_count", key)
    yield from check_heads(Heads(n_head, header.number("attention.head_count_kv", n_head), key, value, n_rot))
    yield from _check_window(header)
    yield from check_sections(header, n_rot // 2)


def check_sections(header: Header, n_pairs: int) -> Iterator[str]:
    name = "rope.dimension_sections"
    key = f"{header.architecture}.{name}"
    array = header.keys.get(key)
    if array is None:
        return
    if not isinstance(array, ArrayRef) or array.type_id not in (4, 5) or array.count != 4:
        yield f"the key {key} is not an array of four 32-bit integers"
        return
    sections = header.arch_key(name)
    others = sum(sections[1:])  # without these the first part of a position rotates every pair
    if min(sections) < 0 or (others and sum(sections) > n_pairs):
        yield f"rotary sections of {sections}, but {n_pairs} pairs are rotated ({key})"


def _check_window(header: Header) -> Iterator[str]:
    if "eagle3.attention.sliding_window" not in header.keys:
        return
    pattern, n_layer = header.arch_key("attention.sliding_window_pattern") or [], header.arch_key("block_count")
    if len(pattern) != n_layer:
        yield f"{len(pattern)} entries for {n_layer} blocks (eagle3.attention.sliding_window_pattern)"


def _sizes(header: Header) -> dict[str, int]:
    hidden, n_head = header.number("embedding_length"), header.number("attention.head_count")
    head = header.number("attention.key_length", hidden // n_head)
    width, n_aux = header.number("target_hidden_size"), len(header.arch_key("target_layers"))
    n_vocab = header.n_vocab or header.number("vocab_size")
    d2t = header.tensors.get("d2t")
    return {
        "H": hidden,
        "T": width,
        "A": n_aux,
        "AT": n_aux * width,
        "F": header.number("feed_forward_length"),
        "Q": n_head * head,
        "K": header.number("attention.head_count_kv", n_head) * head,
        "d": head,
        "R": header.number("rope.dimension_count", head) // 2,
        "D": d2t.n_elements if d2t else n_vocab,
        "V": n_vocab,
        "L": header.number("block_count"),
    }


def _blocks(header: Header, sizes: Mapping[str, int]) -> list[Block]:
    extended = is_extended(header)
    model = MODEL + (EXTENDED_MODEL if extended else ())
    if header.arch_key("norm_before_fc"):
        model += (vector("enc.output_norm.weight", "AT"),)
    if extended and "fc_norm.0.weight" in header.tensors:
        model += tuple(vector(f"fc_norm.{k}.weight", "T") for k in range(sizes["A"]))
    blocks = [Block(model)]
    for i in range(sizes["L"]):
        rows = (*(FIRST_BLOCK if i == 0 else ()), *BLOCK, *(EXTENDED_BLOCK if extended else ()))
        if extended and f"blk.{i}.post_attention_norm.weight" in header.tensors:
            rows += (*GEMMA_NORMS, vector("attn_q_norm.weight", "d"), vector("attn_k_norm.weight", "d"))
        blocks.append(Block(tuple(_widened(row, first=i == 0) for row in rows), f"blk.{i}."))
    return blocks


def _widened(row: Tensor, *, first: bool) -> Tensor:
    """Widen the first block's attention, whose input is the embedding and the features."""
    return replace(row, shape=tuple(("2*H" if first else "H") if size == "W" else size for size in row.shape))


def _check_layout(header: Header, sizes: Mapping[str, int]) -> Iterator[str]:
    if unknown := unknown_names(_blocks(header, sizes), header.tensors):
        yield f"it contains tensors that do not belong to a draft: {', '.join(unknown[:3])}"
    beyond_stock = sizes["L"] != 1 or header.arch_key("norm_output") or header.arch_key("attention.sliding_window")
    if not is_extended(header) and beyond_stock:
        yield "it needs the extended layout, but is not marked as such"
    yield from _check_masks(header, sizes)


def _check_masks(header: Header, sizes: Mapping[str, int]) -> Iterator[str]:
    if is_parallel(header) != (MASK_STATES in header.tensors):
        yield f"it has only one of {MASK_STATES} and {PARALLEL}, but a P-EAGLE draft has both"
    token = header.keys.get(MASK_TOKEN)
    if is_parallel(header) and not (type(token) is int and 0 <= token < sizes["V"]):
        yield f"its mask token is {token}, expected an id below {sizes['V']} ({MASK_TOKEN})"


def check_map(header: Header, sizes: Mapping[str, int]) -> Iterator[str]:
    """Check the ids of d2t: the engine would use ids outside the target's vocabulary as array indices."""
    d2t: TensorInfo | None = header.tensors.get("d2t")
    if d2t is None or d2t.type_id != I64 or d2t.n_elements > sizes["V"]:
        if d2t is not None:
            yield f"d2t is {d2t.type_name} with {d2t.n_elements} ids, expected I64 and 1 to {sizes['V']}"
        return
    ids = struct.unpack(f"<{d2t.n_elements}q", header.read_tensor_bytes("d2t"))
    if min(ids) < 0 or max(ids) >= sizes["V"]:
        yield f"d2t contains ids from {min(ids)} to {max(ids)}, the vocabulary has {sizes['V']} tokens"
    elif len(set(ids)) != len(ids):
        yield "d2t maps two draft tokens to the same id"
