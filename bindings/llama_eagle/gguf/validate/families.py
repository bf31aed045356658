"""Tables of the target families: the keys and tensors that llama.cpp reads, with fused alternatives.

`check` compares files with them, and `convert` writes the tensors that they list.
"""

from __future__ import annotations

from dataclasses import dataclass

from llama_eagle.gguf.validate.keys import INT_MAX
from llama_eagle.gguf.validate.table import (
    F32,
    I64,
    MAX_CONTEXT,
    MAX_EXPERTS,
    MAX_LAYERS,
    MAX_WIDTH,
    Key,
    Tensor,
    matrix,
    vector,
)

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
# rot (rotary pairs), labels (scores of a text), lk, lv (key and value rows of the linear attention), rank, state, conv
# (its kernel).
MODEL = (
    matrix("token_embd.weight", "embd", "vocab"),
    vector("output_norm.weight", "embd"),
    matrix("output.weight", "embd", "out", required=False),
    vector("output.bias", "vocab", required=False),
    Tensor("d2t", ("out",), required=False, type=I64),
    *(vector(f"rope_{name}.weight", "rot", required=False) for name in ("freqs", "factors_long", "factors_short")),
)
SCORES = matrix("cls.output.weight", "embd", "labels", required=False)  # the head of a reranking model
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
)
OUTPUT_BIASES = (  # which llama.cpp reads in its architecture llama alone
    vector("attn_output.bias", "embd", required=False),
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
WIDE_EXPERTS = (  # of the architecture llama: each as wide as the MLP of a model without experts
    matrix("ffn_gate_inp.weight", "embd", "experts"),
    matrix("ffn_gate_exps.weight", "embd", "ff", "experts", required=False),
    matrix("ffn_up_exps.weight", "embd", "ff", "experts"),
    matrix("ffn_down_exps.weight", "ff", "embd", "experts"),
)
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
    """Keys and tensors of a family.

    full: tensors of a block with attention. linear: tensors of a block with a recurrent state, if there are any. mixed:
    tensors of a block with attention in a file with experts, if the family has files with and without them. whole_rope:
    the whole head is rotated. scores: a classification head is read.
    """

    keys: tuple[Key, ...]
    full: tuple[Tensor, ...]
    linear: tuple[Tensor, ...] = ()
    mixed: tuple[Tensor, ...] = ()
    whole_rope: bool = True
    sections: bool = False  # the rotation has sections for time, height and width
    scores: bool = False


FAMILIES = {
    "llama": Family(
        DENSE_KEYS,
        (*NORMS, *ATTENTION, *DENSE, *OUTPUT_BIASES),
        mixed=(*NORMS, *ATTENTION, *WIDE_EXPERTS, OUTPUT_BIASES[0]),  # Mixtral
    ),
    "qwen2": Family(DENSE_KEYS, (*NORMS, *ATTENTION, *DENSE)),
    "qwen3": Family(DENSE_KEYS, (*NORMS, *ATTENTION, *QK_NORMS, *DENSE), scores=True),
    "qwen3moe": Family(EXPERT_KEYS, (*NORMS, *ATTENTION, *QK_NORMS, *EXPERTS)),
    "qwen3vl": Family(DENSE_KEYS, (*NORMS, *ATTENTION, *QK_NORMS, *DENSE), sections=True, scores=True),
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
