"""EAGLE-3 drafts as a family: each tensor's name in the checkpoint and in GGUF, its shape, its transform."""

from __future__ import annotations

import re

import numpy as np
from llama_eagle.convert import rows
from llama_eagle.convert.drafts.gemma4 import block as gemma4
from llama_eagle.convert.dtypes import to_f32
from llama_eagle.convert.table import Dims, Row, Section, Transform

ARCH = "eagle3"

# Sizes in addition to those of rows.py: target, the target's hidden size; aux, the number of its features; draft_vocab.
_FLAT = Transform(lambda values, dims: values.reshape(-1), shape=lambda shape, dims: shape[-1:])
_FEATURES = (
    Row("fc.weight", "fc.weight", ("embd", "aux*target")),
    Row("fc.bias", "fc.bias", ("embd",), required=False),
    Row("input_norm.weight", "enc.output_norm.weight", ("aux*target",), required=False),
    Row("mask_hidden", "fc.mask", ("1", "1", "aux*target"), _FLAT, required=False),
)
_FC_NORM = (Row("weight", "weight", ("target",), required=False),)
ABSOLUTE_IDS = Transform(lambda values, dims: values, note="absolute target ids")


def _biases(rotary: Transform | None) -> tuple[Row, ...]:
    output = Row("self_attn.o_proj.bias", "attn_output.bias", ("embd",), required=False)
    return (*rows.qkv_biases(rotary, required=False), output)


def _vocabulary(logit_scale: float) -> tuple[Row, ...]:
    def scaled(values: np.ndarray, dims: Dims) -> np.ndarray:
        return to_f32(values) * np.float32(logit_scale)

    logits = None if logit_scale == 1 else Transform(scaled, unit="1", note=f"times logit_scale {logit_scale:g}")
    return (
        rows.norm("norm.weight", "output_norm.weight", "embd"),
        Row("lm_head.weight", "output.weight", ("draft_vocab", "embd"), logits, required=False),
        Row("embed_tokens.weight", "token_embd.weight", ("vocab", "embd"), required=False),
        Row("d2t", "d2t", ("draft_vocab",), ABSOLUTE_IDS, required=False),
    )


def _layer(rotary: Transform | None, *, first: bool) -> tuple[Row, ...]:
    """Return a layer's rows. The input of the first layer's attention is the embedding and the features."""
    before, after = rows.NORMS
    return (
        *([rows.norm("hidden_norm.weight", "attn_norm_2.weight", "embd")] if first else ()),
        before,
        *rows.attention("2*embd" if first else "embd", rotary),
        *_biases(rotary),
        *rows.qk_norms(rotary, required=False),
        after,
        *rows.DENSE,
    )


def _gemma_layer(shared_values: bool) -> tuple[Row, ...]:
    """Return the rows of Gemma 4's block, whose attention reads as that of a first layer."""
    projections = rows.attention("2*embd", rows.PAIRS)
    values = Row("self_attn.k_proj.weight", "attn_v.weight", ("kv", "2*embd"))
    return (
        rows.norm("hidden_norm.weight", "attn_norm_2.weight", "embd"),
        *gemma4.NORMS,
        *(values if shared_values and row.target == values.target else row for row in projections),
        *_biases(rows.PAIRS),
        *rows.qk_norms(rows.PAIRS),
        *rows.DENSE,
    )


def table(
    n_layer: int, n_aux: int, logit_scale: float = 1.0, gemma: bool | None = None, *, interleaved: bool = False
) -> list[Section]:
    """Return every tensor that a draft of this size may have.

    gemma: the layers are Gemma 4's, and values are the keys before their norm (True) or have weights (False).
    interleaved: rotary pairs are adjacent rows in the checkpoint, as in the GGUF.
    """
    rotary = None if interleaved else rows.PAIRS
    norms = [Section(_FC_NORM, f"fc_norm.{k}.", f"fc_norm.{k}.") for k in range(n_aux)]
    layers = [
        Section(_layer(rotary, first=i == 0) if gemma is None else _gemma_layer(gemma), f"layers.{i}.", f"blk.{i}.")
        for i in range(n_layer)
    ]
    return [Section(_FEATURES), *norms, Section(_vocabulary(logit_scale)), *layers]


_EXTENDED = re.compile(
    r"fc\.(bias|mask)|fc_norm\.\d+\.weight|blk\.\d+\.(attn_((q|k|v|output)\.bias|[qk]_norm\.weight)|post_.*|layer_output_.*)"
)


def is_extended(name: str) -> bool:
    """Return True if stock llama.cpp does not know this GGUF tensor."""
    return bool(_EXTENDED.fullmatch(name))


_PREFIXES = ("module.", "model.", "eagle_module.", "draft_model.")
_LEGACY = {f"aux_norm_{place}.weight": f"fc_norm.{i}.weight" for i, place in enumerate(("low", "mid", "high"))}
_LEGACY |= {"encoder.fc.weight": "fc.weight", "encoder.output_norm_enc.weight": "hidden_norm.weight"}  # Muse Glimmer

# Tensors that inference does not use: pattern, reason.
DROPPED = (
    (r"t2d", "only checks d2t"),
    (r"(.*\.)?inv_freq", "RoPE is computed from the configuration"),
    (r"verifier_.*", "a copy from the target, used in training only"),
    (r"(optimizer|lr_scheduler|ema)\..*", "training state"),
    (r".*\.self_attn\.(attn\.)?([kv]_proj\.)?([qkv]|kv|output)_scale", "scale of another engine's quantized KV cache"),
)

# Tensors that only other kinds of drafts have: pattern, reason.
REFUSED = (
    (r".*\.(kv_a_proj_with_mqa|kv_b_proj|q_a_proj)\..*", "its attention is MLA"),
    (r".*\.mlp\.(experts\..*|gate\.weight|shared_expert.*)", "its MLP is a mixture of experts"),
    (r"(.*\.)?(eh_proj|enorm|hnorm)\..*", "it is an MTP head (eh_proj), or projects before attention"),
    (r"parallel_draft_heads\..*", "it drafts with parallel heads"),
    (
        r".*\.(weight_scale(_inv|_2)?|weight_global_scale|input_scale|qweight|scales|qzeros|g_idx)",
        "its weights are quantized in a format that is not read (docs/targets.md lists what is)",
    ),
    (r".*\.mlp\.(gate|up|down)_proj\.bias", "its MLP has biases"),
    (r"lm_head\.bias", "its output has a bias"),
    (r".*\.self_attn\.sinks", "its attention has sinks"),
)
GEMMA_BLOCK = (
    r".*\.(pre|post)_feedforward_layernorm\..*|.*\.layer_scalar",
    "its block is Gemma's, but config.json does not name Gemma4Eagle3Model",
)


def canonical(name: str) -> str:
    """Return the name as in the table: without prefixes, and with a number for the one layer of `midlayer.`."""
    while prefix := next((p for p in _PREFIXES if name.startswith(p)), None):
        name = name[len(prefix) :]
    if name.startswith("midlayer."):
        name = "layers.0." + name[len("midlayer.") :]
    return _LEGACY.get(name, name)


def match(patterns: tuple[tuple[str, str], ...], name: str) -> str | None:
    """Return the reason of the first pattern that matches the whole name."""
    return next((reason for pattern, reason in patterns if re.fullmatch(pattern, name)), None)
