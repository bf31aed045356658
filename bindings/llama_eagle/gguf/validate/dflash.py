"""Checks of DFlash, DFlash2 and DSpark drafts, which draft a block of tokens at once, in llama.cpp's own layout."""

from __future__ import annotations

from collections.abc import Iterator

from llama_eagle.gguf.header import ArrayRef, Header
from llama_eagle.gguf.validate.eagle3 import GEMMA_NORMS, check_map, check_sections
from llama_eagle.gguf.validate.keys import check_keys
from llama_eagle.gguf.validate.table import (
    I64,
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
    unknown_names,
    vector,
)

PREFIX = "dflash."
MAX_BLOCK, MAX_AUX = 1024, 64

KEYS = (
    Key("context_length", "u32", 1, MAX_CONTEXT, required=True),
    Key("embedding_length", "u32", 1, MAX_WIDTH, required=True),
    Key("block_count", "u32", 1, MAX_LAYERS, required=True),
    Key("feed_forward_length", "u32s", 1, MAX_WIDTH, required=True),
    Key("attention.head_count", "u32s", 1, MAX_WIDTH, required=True),
    Key("attention.head_count_kv", "u32s", 1, MAX_WIDTH),
    Key("attention.key_length", "u32", 1, MAX_WIDTH),
    Key("attention.value_length", "u32", 1, MAX_WIDTH),
    Key("attention.layer_norm_rms_epsilon", "f32", 0, 1, required=True),
    Key("attention.sliding_window", "u32", 1, MAX_CONTEXT),
    Key("attention.sliding_window_pattern", "bool[]"),
    Key("attention.causal", "bool"),
    Key("attention.scale", "f32", 0, 1e30),
    Key("embedding_scale", "f32", 0, 1e30),
    Key("block_size", "u32", 2, MAX_BLOCK, required=True),
    Key("sample_from_anchor", "bool"),
    Key("expert_count", "u32", 0, 0),
    Key("rope.freq_base", "f32", 1e-6, 1e30),
    Key("rope.dimension_count", "u32", 2, MAX_WIDTH),
)
SELECTOR_KEYS = tuple(
    Key(name, "u32", 1, MAX_WIDTH, required=True)
    for name in ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
)

# Sizes: H width, AH fused width, V target vocabulary, D draft vocabulary, F FFN width, Q and K rows of the projections,
# d head, R rotary pairs, M rank of the Markov head, S rank of the selector, k taps of a convolution, G its projection.
MODEL = (
    matrix("fc.weight", "AH", "H"),
    vector("enc.output_norm.weight", "H"),
    vector("output_norm.weight", "H"),
    matrix("output.weight", "H", "D", required=False),
    matrix("token_embd.weight", "H", "V", required=False),
    Tensor("d2t", ("D",), required=False, type=I64),
    vector("rope_freqs.weight", "R", required=False),
)
MARKOV = (matrix("markov_w1.weight", "M", "V"), matrix("markov_w2.weight", "M", "D"))
GATE_NAME = "markov_w2.gate"
GATE = (matrix(f"{GATE_NAME}.weight", "H+M", "M"), vector(f"{GATE_NAME}.bias", "M"))
CELL = (matrix(f"{GATE_NAME}.weight", "2*M+H", "3*M"), vector(f"{GATE_NAME}.bias", "3*M"))
CONFIDENCE = (matrix("conf_proj.weight", "H+M", "1", required=False), vector("conf_proj.bias", "1", required=False))
SELECTOR = (
    matrix("selector_predecessor.weight", "S", "V"),
    matrix("selector_successor.weight", "S", "V"),
    matrix("selector_hidden.weight", "H", "S"),
)
BLOCK = (
    vector("attn_norm.weight", "H"),
    matrix("attn_q.weight", "H", "Q"),
    matrix("attn_k.weight", "H", "K"),
    matrix("attn_v.weight", "H", "K"),
    matrix("attn_output.weight", "Q", "H"),
    vector("attn_q_norm.weight", "d"),
    vector("attn_k_norm.weight", "d"),
    vector("attn_sinks.weight", "h", required=False),
    vector("ffn_norm.weight", "H"),
    matrix("ffn_gate.weight", "H", "F"),
    matrix("ffn_up.weight", "H", "F"),
    matrix("ffn_down.weight", "F", "H"),
)
GEMMA_BLOCK = (*(row for row in BLOCK if row.name != "attn_v.weight"), *GEMMA_NORMS)
CONVOLUTIONS = tuple(
    row
    for name in ("attn_conv", "ffn_conv")
    for row in (matrix(f"{name}_base", "H", "k", "2"), matrix(f"{name}_proj.weight", "H", "G"))
)


def check_dflash(header: Header) -> Iterator[str]:
    """Yield every reason why the file is not a block draft that can run, with any target."""
    has_selector = "selector_hidden.weight" in header.tensors
    table = KEYS + (SELECTOR_KEYS if has_selector else ())
    faults = [*check_keys(header, table, prefix=PREFIX), *_check_boundaries(header), *_check_mask(header)]
    yield from faults
    if faults:
        return  # tensors cannot be checked against wrong sizes
    faults = list(_check_attention(header))
    yield from faults
    if faults:
        return
    sizes = _sizes(header)
    blocks = _blocks(header, sizes)
    yield from check_tensors(blocks, sizes, header.tensors)
    if unknown := unknown_names(blocks, header.tensors):
        yield f"it contains tensors that do not belong to a draft: {', '.join(unknown[:3])}"
    yield from check_map(header, sizes)
    if CELL[0] in blocks[0].rows and header.arch_key("sample_from_anchor", True) is False:
        yield f"a recurrent Markov head begins with the row of the last token, but {PREFIX}sample_from_anchor is false"


def _check_boundaries(header: Header) -> Iterator[str]:
    layers = header.keys.get(PREFIX + "target_layers")
    if not isinstance(layers, ArrayRef) or layers.type_id not in (4, 5) or not 0 < layers.count <= MAX_AUX:
        yield f"the key {PREFIX}target_layers is not an array of 1 to {MAX_AUX} 32-bit integers"


def _check_mask(header: Header) -> Iterator[str]:
    mask = header.keys.get("tokenizer.ggml.mask_token_id")
    if not isinstance(mask, int) or (header.n_vocab and not 0 <= mask < header.n_vocab):
        yield f"the mask token is {mask} of {header.n_vocab} tokens (tokenizer.ggml.mask_token_id)"


def _check_attention(header: Header) -> Iterator[str]:
    n_head = header.number("attention.head_count")
    key, value = (
        header.number(f"attention.{name}_length", header.number("embedding_length") // n_head)
        for name in ("key", "value")
    )
    n_rot = header.number("rope.dimension_count", key)
    yield from check_heads(Heads(n_head, header.number("attention.head_count_kv", n_head), key, value, n_rot))
    yield from check_sections(header, n_rot // 2)
    pattern, n_layer = header.arch_key("attention.sliding_window_pattern"), header.arch_key("block_count")
    if f"{PREFIX}attention.sliding_window" in header.keys and len(pattern or []) != n_layer:
        yield f"{len(pattern or [])} entries for {n_layer} blocks ({PREFIX}attention.sliding_window_pattern)"
    width, group = header.number("embedding_length"), header.number("conv_group_size", 1)
    top = header.number("selector_top_k")
    if width % group or width < top * (top + 1):
        yield f"groups of {group} and {top} candidates do not fit a width of {width} (conv_group_size, selector_top_k)"


def _sizes(header: Header) -> dict[str, int]:
    hidden, n_head = header.number("embedding_length"), header.number("attention.head_count")
    head = header.number("attention.key_length", hidden // n_head)
    n_vocab = header.n_vocab or header.number("vocab_size")
    d2t, markov = header.tensors.get("d2t"), header.tensors.get("markov_w1.weight")
    n_taps, group = header.number("conv_kernel_size"), header.number("conv_group_size", 1)
    return {
        "H": hidden,
        "AH": len(header.arch_key("target_layers")) * hidden,
        "F": header.number("feed_forward_length"),
        "Q": n_head * head,
        "K": header.number("attention.head_count_kv", n_head) * head,
        "d": head,
        "h": n_head,
        "R": head // 2,
        "D": d2t.n_elements if d2t else n_vocab,
        "V": n_vocab,
        "M": markov.shape[0] if markov else 0,
        "S": header.number("selector_rank"),
        "k": n_taps,
        "G": 2 * n_taps * (hidden // group),
    }


def _gate(header: Header, rank: int) -> tuple[Tensor, ...]:
    """Return the rows of a gated or a recurrent Markov head, () for another."""
    stored = [header.tensors.get(f"{GATE_NAME}.{part}") for part in ("weight", "bias")]
    if not any(stored):
        return ()
    return CELL if any(tensor and tensor.shape[-1] == 3 * rank for tensor in stored) else GATE


def _blocks(header: Header, sizes: dict[str, int]) -> list[Block]:
    has_selector = "selector_hidden.weight" in header.tensors
    model = MODEL + (SELECTOR if has_selector else ())
    if "markov_w1.weight" in header.tensors or "markov_w2.weight" in header.tensors:
        model += MARKOV + CONFIDENCE + _gate(header, sizes["M"])
    block = GEMMA_BLOCK if "blk.0.post_attention_norm.weight" in header.tensors else BLOCK
    rows = block + (CONVOLUTIONS if has_selector else ())
    return [Block(model), *(Block(rows, f"blk.{i}.") for i in range(header.number("block_count")))]
