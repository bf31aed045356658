"""Checks of Gemma 4's assistants, which draft with the keys and values of their target."""

from __future__ import annotations

from collections.abc import Iterator

from llama_eagle.gguf.header import Header
from llama_eagle.gguf.names import ASSISTANT
from llama_eagle.gguf.validate.keys import check_keys
from llama_eagle.gguf.validate.table import (
    MAX_CONTEXT,
    MAX_LAYERS,
    MAX_WIDTH,
    Block,
    Heads,
    Key,
    Tensor,
    check_heads,
    check_tensors,
    matrix,
    vector,
)

TARGET = "gemma4"
PREFIX = f"{ASSISTANT}."

KEYS = (
    Key("context_length", "u32", 1, MAX_CONTEXT, required=True),
    Key("embedding_length", "u32", 1, MAX_WIDTH, required=True),
    Key("embedding_length_out", "u32", 1, MAX_WIDTH, required=True),
    Key("block_count", "u32", 1, MAX_LAYERS, required=True),
    Key("nextn_predict_layers", "u32", 1, MAX_LAYERS, required=True),
    Key("feed_forward_length", "u32s", 1, MAX_WIDTH, required=True),
    Key("attention.head_count", "u32s", 1, MAX_WIDTH, required=True),
    Key("attention.head_count_kv", "u32s", 1, MAX_WIDTH, required=True),
    Key("attention.key_length", "u32", 1, MAX_WIDTH, required=True),
    Key("attention.value_length", "u32", 1, MAX_WIDTH, required=True),
    Key("attention.key_length_swa", "u32", 1, MAX_WIDTH, required=True),
    Key("attention.value_length_swa", "u32", 1, MAX_WIDTH, required=True),
    Key("attention.sliding_window", "u32", 1, MAX_CONTEXT, required=True),
    Key("attention.sliding_window_pattern", "bool[]", required=True),
    Key("attention.layer_norm_rms_epsilon", "f32", 0, 1, required=True),
    Key("rope.freq_base", "f32", 1e-6, 1e30),
    Key("rope.freq_base_swa", "f32", 1e-6, 1e30),
    Key("rope.dimension_count", "u32", 2, MAX_WIDTH),
    Key("rope.dimension_count_swa", "u32", 2, MAX_WIDTH),
    Key("expert_count", "u32", 0, 0),
)

# Sizes: H width, T width of the target, V vocabulary, F FFN width, Q rows of the projection, d head, R rotary pairs.
MODEL = (
    matrix("token_embd.weight", "H", "V"),
    vector("output_norm.weight", "H"),
    matrix("nextn.pre_projection.weight", "2*T", "H"),
    matrix("nextn.post_projection.weight", "H", "T"),
)
FACTORS = (vector("rope_freqs.weight", "R"),)
BLOCK = (
    vector("attn_norm.weight", "H"),
    matrix("attn_q.weight", "H", "Q"),
    vector("attn_q_norm.weight", "d"),
    matrix("attn_output.weight", "Q", "H"),
    vector("post_attention_norm.weight", "H"),
    vector("ffn_norm.weight", "H"),
    matrix("ffn_gate.weight", "H", "F"),
    matrix("ffn_up.weight", "H", "F"),
    matrix("ffn_down.weight", "F", "H"),
    vector("post_ffw_norm.weight", "H"),
    Tensor("layer_output_scale.weight", ("1",), type=0),
)


def check_assistant(header: Header) -> Iterator[str]:
    """Yield every reason why the file is not an assistant that can run, with any target."""
    faults = [*check_keys(header, KEYS, prefix=PREFIX)] or [*_check_layers(header)]
    yield from faults
    if faults:
        return  # tensors cannot be checked against wrong sizes
    for il in range(header.number("block_count")):
        sizes = _sizes(header, il)
        heads = Heads(
            header.number("attention.head_count", layer=il),
            header.number("attention.head_count_kv", layer=il),
            sizes["d"],
            sizes["v"],
            sizes["rotary"],
        )
        yield from check_heads(heads)
        blocks = [Block(BLOCK, f"blk.{il}."), *([] if is_windowed(header, il) else [Block(FACTORS)])]
        yield from check_tensors(blocks, sizes, header.tensors)
    yield from check_tensors([Block(MODEL)], _sizes(header, 0), header.tensors)


def problems(target: Header, draft: Header) -> Iterator[str]:
    """Yield every reason why an assistant cannot draft for a target, apart from the vocabulary."""
    if target.architecture != TARGET:
        yield f"it is an assistant of Gemma 4, the target is a {target.architecture} model."
        return
    expected, width = (draft.number("embedding_length_out"), target.number("embedding_length"))
    if expected != width:
        yield f"it was trained for a hidden size of {expected}, the target has {width}. Use the draft of this target."
        return
    last = target.number("block_count") - 1
    if last < 1 or is_windowed(target, last) or not is_windowed(target, last - 1):
        yield "the target does not end with a layer of a sliding window and one without."
        return
    for il in range(draft.number("block_count")):
        source = last - 1 if is_windowed(draft, il) else last
        own, theirs = (
            (header.number("attention.head_count_kv", layer=k), _key_length(header, k))
            for header, k in ((draft, il), (target, source))
        )
        if own != theirs:
            yield (
                f"its layer {il} reads {own[0]} heads of {own[1]}, the target has {theirs[0]} of {theirs[1]}. "
                "Use the draft of this target."
            )
            return


def is_windowed(header: Header, il: int) -> bool:
    pattern = header.arch_key("attention.sliding_window_pattern", [])
    return bool(pattern[il]) if isinstance(pattern, list) and il < len(pattern) else False


def _key_length(header: Header, il: int) -> int:
    return header.number(f"attention.key_length{'_swa' if is_windowed(header, il) else ''}")


def _check_layers(header: Header) -> Iterator[str]:
    n, n_heads = (header.number(name) for name in ("block_count", "nextn_predict_layers"))
    if n != n_heads:
        yield f"{n_heads} of {n} blocks draft (nextn_predict_layers)"
    if len(header.arch_key("attention.sliding_window_pattern")) != n:
        yield f"sliding_window_pattern has not one entry for each of {n} blocks"
    if header.number("embedding_length_out") == header.number("embedding_length"):
        yield "embedding_length_out is embedding_length, but llama.cpp needs an assistant narrower than its target"


def _sizes(header: Header, il: int) -> dict[str, int]:
    suffix = "_swa" if is_windowed(header, il) else ""
    head = header.number(f"attention.key_length{suffix}")
    return {
        "H": header.number("embedding_length"),
        "T": header.number("embedding_length_out"),
        "V": header.n_vocab,
        "F": header.number("feed_forward_length", layer=il),
        "Q": header.number("attention.head_count", layer=il) * head,
        "d": head,
        "v": header.number(f"attention.value_length{suffix}"),
        "R": head // 2,
        "rotary": header.number(f"rope.dimension_count{suffix}", head),
    }
