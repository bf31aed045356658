"""Tables of the target families that `convert` writes, as llama.cpp reads them, with fused alternatives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llama_eagle.gguf.header import ArrayRef, Header, TensorInfo
from llama_eagle.gguf.rotation import QWEN3VL_SECTIONS, unassigned_pairs
from llama_eagle.gguf.validate.keys import INT_MAX, check_keys
from llama_eagle.gguf.validate.table import (
    F32,
    I64,
    MAX_CONTEXT,
    MAX_EXPERTS,
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
)  # fmt: skip

REQUIRED = (
    Key("context_length", "u32", 1, MAX_CONTEXT, required=True),
    Key("embedding_length", "u32", 1, MAX_WIDTH, required=True),
    Key("block_count", "u32", 1, MAX_LAYERS, required=True),
    Key("attention.head_count", "u32s", 0, MAX_WIDTH, required=True),
    Key("attention.layer_norm_rms_epsilon", "f32", 0, 1, required=True),
)
DENSE_KEYS = (Key("feed_forward_length", "u32s", 1, MAX_WIDTH, required=True),)
EXPERT_KEYS = (
    Key("expert_count", "u32", 1, MAX_EXPERTS, required=True),
    Key("expert_used_count", "u32s", 1, MAX_EXPERTS, required=True),
)
LINEAR_KEYS = (
    Key("ssm.conv_kernel", "u32", 2, 64, required=True),
    Key("ssm.inner_size", "u32", 1, MAX_WIDTH, required=True),
    Key("ssm.state_size", "u32", 1, MAX_WIDTH, required=True),
    Key("ssm.group_count", "u32", 1, MAX_WIDTH, required=True),
    Key("ssm.time_step_rank", "u32", 1, MAX_WIDTH, required=True),
    Key("full_attention_interval", "u32", 1, INT_MAX),
)

# Sizes: embd, vocab, ff, eff (an expert's), sff (the shared one's), experts, q, k (rows of the projections), head,
# rot (rotary pairs), lk, lv (key and value rows of the linear attention), rank, state, conv (its kernel).
MODEL = (
    matrix("token_embd.weight", "embd", "vocab"),
    vector("output_norm.weight", "embd"),
    matrix("output.weight", "embd", "out", required=False),
    vector("output.bias", "vocab", required=False),
    Tensor("d2t", ("out",), required=False, type=I64),
    *(vector(f"rope_{name}.weight", "rot", required=False) for name in ("freqs", "factors_long", "factors_short")),
)
SEPARATE = ("attn_q.weight", "attn_k.weight", "attn_v.weight")
BIASES = (
    vector("attn_q.bias", "q", required=False),
    vector("attn_k.bias", "k", required=False),
    vector("attn_v.bias", "k", required=False),
)
ATTENTION = (
    Tensor("attn_qkv.weight", ("embd", "q+2*k"), required=False, instead_of=SEPARATE),
    vector("attn_qkv.bias", "q+2*k", required=False),
    matrix("attn_q.weight", "embd", "q"),
    matrix("attn_k.weight", "embd", "k"),
    matrix("attn_v.weight", "embd", "k"),
    matrix("attn_output.weight", "q", "embd"),
    vector("attn_output.bias", "embd", required=False),
    *BIASES,
)
GATED = (  # queries and their gates in one tensor
    Tensor("attn_qkv.weight", ("embd", "2*q+2*k"), required=False, instead_of=SEPARATE),
    matrix("attn_q.weight", "embd", "2*q"),
    matrix("attn_k.weight", "embd", "k"),
    matrix("attn_v.weight", "embd", "k"),
    matrix("attn_output.weight", "q", "embd"),
    vector("attn_q.bias", "2*q", required=False),
    *BIASES[1:],
)
QK_NORMS = (vector("attn_q_norm.weight", "head"), vector("attn_k_norm.weight", "head"))
NORMS = (vector("attn_norm.weight", "embd"), vector("ffn_norm.weight", "embd"))
HYBRID_NORMS = (vector("attn_norm.weight", "embd"), vector("post_attention_norm.weight", "embd"))
DENSE = (
    matrix("ffn_gate.weight", "embd", "ff"),
    matrix("ffn_up.weight", "embd", "ff"),
    matrix("ffn_down.weight", "ff", "embd"),
    vector("ffn_gate.bias", "ff", required=False),
    vector("ffn_up.bias", "ff", required=False),
    vector("ffn_down.bias", "embd", required=False),
)
EXPERTS = (
    matrix("ffn_gate_inp.weight", "embd", "experts"),
    Tensor(
        "ffn_gate_up_exps.weight", ("embd", "2*eff", "experts"), required=False,
        instead_of=("ffn_gate_exps.weight", "ffn_up_exps.weight"),
    ),
    matrix("ffn_gate_exps.weight", "embd", "eff", "experts"),
    matrix("ffn_up_exps.weight", "embd", "eff", "experts"),
    matrix("ffn_down_exps.weight", "eff", "embd", "experts"),
)  # fmt: skip
SHARED_EXPERT = (
    vector("ffn_gate_inp_shexp.weight", "embd"),
    matrix("ffn_gate_shexp.weight", "embd", "sff"),
    matrix("ffn_up_shexp.weight", "embd", "sff"),
    matrix("ffn_down_shexp.weight", "sff", "embd"),
)
DELTA_NET = (
    matrix("attn_qkv.weight", "embd", "2*lk+lv"),
    matrix("attn_gate.weight", "embd", "lv"),
    Tensor("ssm_conv1d.weight", ("conv", "2*lk+lv"), type=F32),
    vector("ssm_dt.bias", "rank"),
    vector("ssm_a", "rank"),
    vector("ssm_norm.weight", "state"),
    matrix("ssm_out.weight", "lv", "embd"),
)
ALPHA_BETA = (matrix("ssm_beta.weight", "embd", "rank"), matrix("ssm_alpha.weight", "embd", "rank"))
ALPHA_BETA_FUSED = (
    matrix("ssm_ba.weight", "embd", "2*rank"),
    Tensor("ssm_in.weight", ("embd", "2*lk+2*lv"), required=False, instead_of=("attn_qkv.weight", "attn_gate.weight")),
)
NEXTN = (
    matrix("nextn.eh_proj.weight", "2*embd", "embd"),
    vector("nextn.enorm.weight", "embd"),
    vector("nextn.hnorm.weight", "embd"),
    matrix("nextn.embed_tokens.weight", "embd", "vocab", required=False),
    matrix("nextn.shared_head_head.weight", "embd", "vocab", required=False),
    vector("nextn.shared_head_norm.weight", "embd", required=False),
)


@dataclass(frozen=True)
class Family:
    """Tables of a family.

    full: rows of a block with attention. linear: rows of a block with a recurrent state, if there are any. whole_rope:
    the whole head is rotated.
    """

    keys: tuple[Key, ...]
    full: tuple[Tensor, ...]
    linear: tuple[Tensor, ...] = ()
    whole_rope: bool = True
    sections: bool = False  # the rotation has sections for time, height and width


FAMILIES = {
    "llama": Family(DENSE_KEYS, (*NORMS, *ATTENTION, *DENSE)),
    "qwen2": Family(DENSE_KEYS, (*NORMS, *ATTENTION, *DENSE)),
    "qwen3": Family(DENSE_KEYS, (*NORMS, *ATTENTION, *QK_NORMS, *DENSE)),
    "qwen3moe": Family(EXPERT_KEYS, (*NORMS, *ATTENTION, *QK_NORMS, *EXPERTS)),
    "qwen3vl": Family(DENSE_KEYS, (*NORMS, *ATTENTION, *QK_NORMS, *DENSE), sections=True),
    "qwen3vlmoe": Family(EXPERT_KEYS, (*NORMS, *ATTENTION, *QK_NORMS, *EXPERTS), sections=True),
    "qwen3next": Family(
        EXPERT_KEYS + LINEAR_KEYS,
        (*HYBRID_NORMS, *GATED, *QK_NORMS, *EXPERTS, *SHARED_EXPERT),
        (*HYBRID_NORMS, *DELTA_NET, *ALPHA_BETA_FUSED, *EXPERTS, *SHARED_EXPERT),
        whole_rope=False,
    ),
    "qwen35": Family(
        DENSE_KEYS + LINEAR_KEYS,
        (*HYBRID_NORMS, *GATED, *QK_NORMS, *DENSE),
        (*HYBRID_NORMS, *DELTA_NET, *ALPHA_BETA, *DENSE),
        whole_rope=False,
        sections=True,
    ),
    "qwen35moe": Family(
        EXPERT_KEYS + LINEAR_KEYS,
        (*HYBRID_NORMS, *GATED, *QK_NORMS, *EXPERTS, *SHARED_EXPERT),
        (*HYBRID_NORMS, *DELTA_NET, *ALPHA_BETA, *EXPERTS, *SHARED_EXPERT),
        whole_rope=False,
        sections=True,
    ),
}


class _Keys:
    """A target's numbers, after their types were checked."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.n_all = int(header.arch_key("block_count"))
        self.n_nextn = int(header.arch_key("nextn_predict_layers", 0))
        self.recurrent = self._recurrent()

    def number(self, name: str, default: int = 0) -> int:
        """Return a scalar, or an array's entry for the first block: llama.cpp's tables have one width for all."""
        value = self.header.arch_key(name, default)
        return int(value[0] if isinstance(value, list) else value)

    def _recurrent(self) -> list[bool]:
        n_trunk = self.n_all - self.n_nextn
        found = self.header.arch_key("attention.recurrent_layers")
        if isinstance(found, list):
            return [bool(value) for value in found]
        if self.header.arch_key("ssm.state_size") is None:
            return [False] * self.n_all
        interval = int(self.header.arch_key("full_attention_interval", 4))
        return [i < n_trunk and (i + 1) % interval != 0 for i in range(self.n_all)]


def check_target(header: Header, tensors: dict[str, TensorInfo]) -> Iterator[str]:
    """Yield every reason why llama.cpp cannot run the model. tensors: of all its files."""
    family = FAMILIES[header.architecture]
    prefix = f"{header.architecture}."
    faults = [*check_keys(header, REQUIRED + family.keys, prefix=prefix), *_check_layers(header, family)]
    yield from faults
    if faults:
        return  # tensors cannot be checked against wrong sizes
    keys = _Keys(header)
    faults = [*_check_attention(keys, family), *_check_linear(keys, family)]
    yield from faults
    if not faults:
        sizes = _sizes(keys)
        if "d2t" in tensors and not _has_trunk(keys, tensors):  # a head alone, with a vocabulary of its own
            sizes["out"] = tensors["d2t"].n_elements
        yield from check_tensors(_blocks(keys, family, tensors), sizes, tensors)


def unknown_tensors(header: Header, tensors: dict[str, TensorInfo]) -> list[str]:
    """Return the names that the family's table lacks."""
    return unknown_names(_blocks(_Keys(header), FAMILIES[header.architecture], tensors), tensors)


def _check_layers(header: Header, family: Family) -> Iterator[str]:
    n_all = header.keys.get(f"{header.architecture}.block_count")
    n_nextn = header.keys.get(f"{header.architecture}.nextn_predict_layers", 0)
    if isinstance(n_all, int) and isinstance(n_nextn, int) and n_nextn >= n_all:
        yield f"{n_nextn} prediction blocks of {n_all} blocks (nextn_predict_layers)"
    for name, kinds, count in (
        ("attention.recurrent_layers", (4, 5, 7), n_all),
        ("rope.dimension_sections", (4, 5), 4),
    ):
        value = header.keys.get(f"{header.architecture}.{name}")
        if isinstance(value, ArrayRef) and value.count != count:
            yield f"the key {header.architecture}.{name} has wrong array length; expected {count}, got {value.count}"
        elif isinstance(value, ArrayRef) and value.type_id not in kinds:
            yield f"the key {header.architecture}.{name} has another type than u32"
        elif value is not None and not isinstance(value, ArrayRef):
            yield f"the key {header.architecture}.{name} is not an array"
    if family.sections and f"{header.architecture}.rope.dimension_sections" not in header.keys:
        yield f"the key {header.architecture}.rope.dimension_sections is missing"


def _check_attention(keys: _Keys, family: Family) -> Iterator[str]:
    n_head = keys.number("attention.head_count")
    n_head_kv = keys.number("attention.head_count_kv", n_head)
    default = keys.number("embedding_length") // max(n_head, 1)
    head, value = (keys.number(f"attention.{name}_length", default) for name in ("key", "value"))
    n_rot = keys.number("rope.dimension_count", head)
    yield from check_heads(Heads(n_head, n_head_kv, head, value, n_rot))
    if family.whole_rope and n_rot != head:
        yield f"{n_rot} rotary dimensions of heads of {head}; this family rotates whole heads (rope.dimension_count)"
    sections = keys.header.arch_key("rope.dimension_sections", [])
    if family.sections and not (min(sections) >= 0 and 0 < sum(sections[:3]) <= sum(sections) <= head):
        yield f"rotary sections of {sections} in heads of {head} (rope.dimension_sections)"
    elif family.sections and sections[:3] != QWEN3VL_SECTIONS and (left := unassigned_pairs(sections, n_rot // 2)):
        yield f"rotary sections of {sections} do not rotate pair {left[0]} of {n_rot // 2} (rope.dimension_sections)"
    if not 0 <= keys.number("n_deepstack_layers") <= keys.n_all:
        yield f"{keys.number('n_deepstack_layers')} blocks take vision features, of {keys.n_all} (n_deepstack_layers)"


def _check_linear(keys: _Keys, family: Family) -> Iterator[str]:
    if not family.linear:
        return
    rank, groups, state = (keys.number(f"ssm.{name}") for name in ("time_step_rank", "group_count", "state_size"))
    if rank % groups:
        yield f"{rank} value heads do not divide into {groups} key heads (ssm.time_step_rank, ssm.group_count)"
    if keys.number("ssm.inner_size") != rank * state:
        yield f"ssm.inner_size is {keys.number('ssm.inner_size')}, {rank} heads of {state} values have {rank * state}"


def _sizes(keys: _Keys) -> dict[str, int]:
    embd, n_head, ff = (keys.number(n) for n in ("embedding_length", "attention.head_count", "feed_forward_length"))
    head = keys.number("attention.key_length", embd // n_head)
    state, rank = keys.number("ssm.state_size"), keys.number("ssm.time_step_rank")
    used = max(1, keys.number("expert_used_count"))
    n_vocab = keys.header.n_vocab or keys.number("vocab_size")
    labels = keys.header.keys.get(f"{keys.header.architecture}.classifier.output_labels")  # in models for ranking
    return {
        "embd": embd,
        "vocab": n_vocab,
        "out": labels.count if isinstance(labels, ArrayRef) else n_vocab,
        "ff": ff,
        "eff": keys.number("expert_feed_forward_length") or ff // used,
        "sff": keys.number("expert_shared_feed_forward_length") or ff,
        "experts": keys.number("expert_count"),
        "q": n_head * head,
        "k": keys.number("attention.head_count_kv", n_head) * head,
        "head": head,
        "rot": keys.number("rope.dimension_count", head) // 2,
        "lk": keys.number("ssm.group_count") * state,
        "lv": rank * state,
        "rank": rank,
        "state": state,
        "conv": keys.number("ssm.conv_kernel"),
    }


def _has_trunk(keys: _Keys, tensors: dict[str, TensorInfo]) -> bool:
    """Return True if the file is a complete model, not only prediction blocks."""
    return not keys.n_nextn or "blk.0.attn_norm.weight" in tensors


def _blocks(keys: _Keys, family: Family, tensors: dict[str, TensorInfo]) -> list[Block]:
    n_trunk = keys.n_all - keys.n_nextn
    has_trunk = _has_trunk(keys, tensors)
    full = family.full
    if family is FAMILIES["llama"] and keys.number("expert_count"):  # Mixtral
        full = (*NORMS, *ATTENTION, *EXPERTS)
    blocks = [Block(MODEL)]
    for i in range(n_trunk):
        rows = family.linear if keys.recurrent[i] and family.linear else full
        blocks.append(Block(rows, f"blk.{i}.", has_trunk))
    blocks += [Block((*full, *NEXTN), f"blk.{i}.") for i in range(n_trunk, keys.n_all)]
    return blocks
