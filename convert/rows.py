"""Rows and transforms shared by several families, including drafts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from llama_eagle.convert.dtypes import to_f32
from llama_eagle.convert.table import Dims, Row, Transform

# --- transforms -------------------------------------------------------------------------------------------------


def _negative_exp(values: np.ndarray) -> np.ndarray:
    """Return -exp(A_log), rounded once: float32's exp differs in the last place between libraries."""
    return (-np.exp(to_f32(values).astype(np.float64))).astype(np.float32)


def interleave(values: np.ndarray, head: int, n_rot: int) -> np.ndarray:
    """Reorder the rows [n_head * head_dim, ...] of each head for llama.cpp, which rotates adjacent pairs.

    Pair i is rows 2i and 2i + 1 there, and rows i and i + n_rot / 2 in Hugging Face. Rows from n_rot on are not rotated
    and keep their places.
    """
    order = np.arange(head)
    order[:n_rot] = np.arange(n_rot).reshape(2, -1).T.reshape(-1)
    return values.reshape(-1, head, *values.shape[1:])[:, order].reshape(values.shape)


def deinterleave(values: np.ndarray, head: int, n_rot: int) -> np.ndarray:
    """Undo `interleave`."""
    order = interleave(np.arange(head), head, n_rot)
    return values.reshape(-1, head, *values.shape[1:])[:, np.argsort(order)].reshape(values.shape)


PAIRS = Transform(
    lambda values, dims: interleave(values, dims["head"], dims["n_rot"]),
    unit="head",
    note="rows reordered for interleaved rotation",
)

# Qwen3-Next and Qwen3.5 store RMSNorm weights as their difference from one.
PLUS_ONE = Transform(lambda values, dims: to_f32(values) + np.float32(1))
NEGATIVE_EXP = Transform(lambda values, dims: _negative_exp(values))
SQUEEZE_CONV = Transform(
    lambda values, dims: values.reshape(len(values), -1), lambda shape, dims: (shape[0], shape[1] * shape[2])
)

# Fused experts, as slices [2 * expert_ff, embd] (out_in) or their transposes (in_out).
FIRST_HALF = Transform(lambda v, dims: v[: len(v) // 2], lambda s, dims: (s[0] // 2, s[1]))
SECOND_HALF = Transform(lambda v, dims: v[len(v) // 2 :], lambda s, dims: (s[0] // 2, s[1]))
TRANSPOSED = Transform(lambda v, dims: v.T, lambda s, dims: (s[1], s[0]))
FIRST_HALF_T = Transform(lambda v, dims: v[:, : v.shape[1] // 2].T, lambda s, dims: (s[1] // 2, s[0]))
SECOND_HALF_T = Transform(lambda v, dims: v[:, v.shape[1] // 2 :].T, lambda s, dims: (s[1] // 2, s[0]))

# mlx-lm's hybrids: norms hold the one, and a convolution has its channels last.
CONV = ("lin_qkv", "1", "conv")


def of_mlx(row: Row) -> Row:
    """Return a row for mlx-lm's form of a checkpoint."""
    if row.transform is PLUS_ONE:
        return replace(row, transform=None)
    return replace(row, shape=("lin_qkv", "conv", "1")) if row.shape == CONV else row


def tile_heads(values: np.ndarray, dims: Dims, head: int, axis: int = 0) -> np.ndarray:
    """Reorder value heads from grouped by key head (k0v0 k0v1 k1v0 k1v1) to tiled (k0v0 k1v0 k0v1 k1v1), on one axis.

    ggml repeats key heads by tiling, PyTorch by interleaving. head: elements per head on that axis.
    """
    heads = (dims["k_heads"], dims["v_heads"] // dims["k_heads"], head)
    groups = values.reshape(*values.shape[:axis], *heads, *values.shape[axis + 1 :])
    return np.ascontiguousarray(groups.swapaxes(axis, axis + 1)).reshape(values.shape)


def _tile_tail(values: np.ndarray, dims: Dims) -> np.ndarray:
    """Tile the rows of v, and keep those of q and k."""
    n_qk = 2 * dims["lin_k"]
    return np.concatenate([values[:n_qk], tile_heads(values[n_qk:], dims, dims["v_head"])])


TILE_QKV = Transform(_tile_tail)
TILE_ROWS = Transform(lambda v, dims: tile_heads(v, dims, dims["v_head"]))
TILE_ONE_PER_HEAD = Transform(lambda v, dims: tile_heads(v, dims, 1))
TILE_COLUMNS = Transform(lambda v, dims: tile_heads(v, dims, dims["v_head"], axis=1))
TILE_NEGATIVE_EXP = Transform(lambda v, dims: tile_heads(_negative_exp(v), dims, 1))
TILE_CONV = Transform(lambda v, dims: _tile_tail(v.reshape(len(v), -1), dims), SQUEEZE_CONV.shape)

# --- rows -------------------------------------------------------------------------------------------------------


def norm(source: str, target: str, width: str, transform: Transform | None = None) -> Row:
    return Row(source, target, (width,), transform)


def model_rows(final_norm: Transform | None = None) -> tuple[Row, ...]:
    """Return rows for embeddings, final norm and head. Without a head, llama.cpp uses the embeddings."""
    return (
        Row("embed_tokens.weight", "token_embd.weight", ("vocab", "embd")),
        norm("norm.weight", "output_norm.weight", "embd", final_norm),
        Row("lm_head.weight", "output.weight", ("vocab", "embd"), required=False),
    )


def attention(width: str = "embd", rotary: Transform | None = None) -> tuple[Row, ...]:
    """Return rows of the attention. width: of its input. rotary: transform of the rows of q and k."""
    return (
        Row("self_attn.q_proj.weight", "attn_q.weight", ("q", width), rotary),
        Row("self_attn.k_proj.weight", "attn_k.weight", ("kv", width), rotary),
        Row("self_attn.v_proj.weight", "attn_v.weight", ("kv", width)),
        Row("self_attn.o_proj.weight", "attn_output.weight", ("embd", "q")),
    )


def qkv_biases(rotary: Transform | None = None, *, required: bool = True) -> tuple[Row, ...]:
    return (
        Row("self_attn.q_proj.bias", "attn_q.bias", ("q",), rotary, required),
        Row("self_attn.k_proj.bias", "attn_k.bias", ("kv",), rotary, required),
        Row("self_attn.v_proj.bias", "attn_v.bias", ("kv",), None, required),
    )


def qk_norms(transform: Transform | None = None, *, required: bool = True) -> tuple[Row, ...]:
    return (
        Row("self_attn.q_norm.weight", "attn_q_norm.weight", ("head",), transform, required),
        Row("self_attn.k_norm.weight", "attn_k_norm.weight", ("head",), transform, required),
    )


ATTENTION = attention()
OUTPUT_BIASES = (  # with attention_bias and mlp_bias
    Row("self_attn.o_proj.bias", "attn_output.bias", ("embd",), required=False),
    Row("mlp.gate_proj.bias", "ffn_gate.bias", ("ff",), required=False),
    Row("mlp.up_proj.bias", "ffn_up.bias", ("ff",), required=False),
    Row("mlp.down_proj.bias", "ffn_down.bias", ("embd",), required=False),
)
NORMS = (
    norm("input_layernorm.weight", "attn_norm.weight", "embd"),
    norm("post_attention_layernorm.weight", "ffn_norm.weight", "embd"),
)
DENSE = (
    Row("mlp.gate_proj.weight", "ffn_gate.weight", ("ff", "embd")),
    Row("mlp.up_proj.weight", "ffn_up.weight", ("ff", "embd")),
    Row("mlp.down_proj.weight", "ffn_down.weight", ("embd", "ff")),
)
_GATE_UP, _DOWN = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"
EXPERTS = (
    Row("mlp.gate.weight", "ffn_gate_inp.weight", ("experts", "embd")),
    Row("mlp.experts.{e}.gate_proj.weight", "ffn_gate_exps.weight", ("expert_ff", "embd")),
    Row("mlp.experts.{e}.up_proj.weight", "ffn_up_exps.weight", ("expert_ff", "embd")),
    Row("mlp.experts.{e}.down_proj.weight", "ffn_down_exps.weight", ("embd", "expert_ff")),
    *(  # MLX's
        Row(f"mlp.switch_mlp.{name}_proj.weight", f"ffn_{name}_exps.weight", ("experts", *shape), layout="out_in")
        for name, shape in (
            ("gate", ("expert_ff", "embd")),
            ("up", ("expert_ff", "embd")),
            ("down", ("embd", "expert_ff")),
        )
    ),
    Row(_GATE_UP, "ffn_gate_exps.weight", ("experts", "2*expert_ff", "embd"), FIRST_HALF, layout="out_in"),
    Row(_GATE_UP, "ffn_up_exps.weight", ("experts", "2*expert_ff", "embd"), SECOND_HALF, layout="out_in"),
    Row(_DOWN, "ffn_down_exps.weight", ("experts", "embd", "expert_ff"), layout="out_in"),
    Row(_GATE_UP, "ffn_gate_exps.weight", ("experts", "embd", "2*expert_ff"), FIRST_HALF_T, layout="in_out"),
    Row(_GATE_UP, "ffn_up_exps.weight", ("experts", "embd", "2*expert_ff"), SECOND_HALF_T, layout="in_out"),
    Row(_DOWN, "ffn_down_exps.weight", ("experts", "expert_ff", "embd"), TRANSPOSED, layout="in_out"),
)
SHARED_EXPERT = (
    Row("mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", ("1", "embd")),
    Row("mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight", ("shared_ff", "embd")),
    Row("mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight", ("shared_ff", "embd")),
    Row("mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight", ("embd", "shared_ff")),
)


def uniform(rotary: Transform | None = None, *, biases: bool = False) -> tuple[Row, ...]:
    """Return the rows of models with full attention alone. rotary: as in attention(). biases: of q, k, v, required."""
    return (
        *model_rows(),
        *NORMS,
        *attention(rotary=rotary),
        *qk_norms(),
        *qkv_biases(rotary, required=biases),
        *DENSE,
        *EXPERTS,
        *OUTPUT_BIASES,
    )


# Blocks of Qwen3-Next and Qwen3.5: norms are stored minus one, and each query has a gate.
HYBRID_NORMS = (
    norm("input_layernorm.weight", "attn_norm.weight", "embd", PLUS_ONE),
    norm("post_attention_layernorm.weight", "post_attention_norm.weight", "embd", PLUS_ONE),
)
GATED_ATTENTION = (
    Row("self_attn.q_proj.weight", "attn_q.weight", ("2*q", "embd")),  # per head: the query, then the gate
    *ATTENTION[1:],
    *qk_norms(PLUS_ONE),
)
MTP = (
    Row("fc.weight", "nextn.eh_proj.weight", ("embd", "2*embd")),
    norm("pre_fc_norm_embedding.weight", "nextn.enorm.weight", "embd", PLUS_ONE),
    norm("pre_fc_norm_hidden.weight", "nextn.hnorm.weight", "embd", PLUS_ONE),
    norm("norm.weight", "nextn.shared_head_norm.weight", "embd", PLUS_ONE),
)
HYBRID = (
    *model_rows(final_norm=PLUS_ONE),
    *HYBRID_NORMS,
    *GATED_ATTENTION,
    *DENSE,
    *EXPERTS,
    *SHARED_EXPERT,
    *MTP,
)
# Gated DeltaNet of Qwen3.5; value heads are tiled.
DELTA_NET = (
    Row("linear_attn.in_proj_qkv.weight", "attn_qkv.weight", ("lin_qkv", "embd"), TILE_QKV),
    Row("linear_attn.in_proj_z.weight", "attn_gate.weight", ("lin_v", "embd"), TILE_ROWS),
    Row("linear_attn.in_proj_a.weight", "ssm_alpha.weight", ("v_heads", "embd"), TILE_ONE_PER_HEAD),
    Row("linear_attn.in_proj_b.weight", "ssm_beta.weight", ("v_heads", "embd"), TILE_ONE_PER_HEAD),
    Row("linear_attn.conv1d.weight", "ssm_conv1d.weight", CONV, TILE_CONV),
    Row("linear_attn.A_log", "ssm_a", ("v_heads",), TILE_NEGATIVE_EXP),
    Row("linear_attn.dt_bias", "ssm_dt.bias", ("v_heads",), TILE_ONE_PER_HEAD),
    norm("linear_attn.norm.weight", "ssm_norm.weight", "v_head"),
    Row("linear_attn.out_proj.weight", "ssm_out.weight", ("embd", "lin_v"), TILE_COLUMNS),
)
