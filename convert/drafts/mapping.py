"""Every tensor of an EAGLE-3 draft: its name in the checkpoint, in GGUF, its shape, and what happens to it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Shape = tuple[str, ...]
Transform = Literal["copy", "rotary", "logits", "ids"]


@dataclass(frozen=True)
class Rule:
    """One line of the table.

    source: canonical checkpoint name; {i} is a layer, {k} an aux feature. shape: NumPy order, by the letters of
    Dimensions. transform: "rotary" reorders the rows of each head for llama.cpp's interleaved pairs, "logits" takes
    logit_scale, "ids" makes absolute int64 ids. stock: stock llama.cpp knows it.
    """

    source: str
    gguf: str
    shape: Shape
    required: bool = True
    transform: Transform = "copy"
    stock: bool = True


# H draft width, T target width, A aux features, D draft vocabulary, V target vocabulary, F FFN width, Q and K rows of
# the query and key projections, d head size, W input width of a layer's attention (2H for the first, else H).
MODEL = (
    Rule("fc.weight", "fc.weight", ("H", "AT")),
    Rule("fc.bias", "fc.bias", ("H",), required=False, stock=False),
    Rule("input_norm.weight", "enc.output_norm.weight", ("AT",), required=False),
    Rule("fc_norm.{k}.weight", "fc_norm.{k}.weight", ("T",), required=False, stock=False),
    Rule("norm.weight", "output_norm.weight", ("H",)),
    Rule("lm_head.weight", "output.weight", ("D", "H"), required=False, transform="logits"),
    Rule("embed_tokens.weight", "token_embd.weight", ("V", "H"), required=False),
    Rule("d2t", "d2t", ("D",), required=False, transform="ids"),
)

FIRST_LAYER = (Rule("layers.{i}.hidden_norm.weight", "blk.{i}.attn_norm_2.weight", ("H",)),)

LAYER = (
    Rule("layers.{i}.input_layernorm.weight", "blk.{i}.attn_norm.weight", ("H",)),
    Rule("layers.{i}.self_attn.q_proj.weight", "blk.{i}.attn_q.weight", ("Q", "W"), transform="rotary"),
    Rule("layers.{i}.self_attn.k_proj.weight", "blk.{i}.attn_k.weight", ("K", "W"), transform="rotary"),
    Rule("layers.{i}.self_attn.v_proj.weight", "blk.{i}.attn_v.weight", ("K", "W")),
    Rule("layers.{i}.self_attn.o_proj.weight", "blk.{i}.attn_output.weight", ("H", "Q")),
    Rule("layers.{i}.self_attn.q_proj.bias", "blk.{i}.attn_q.bias", ("Q",), False, "rotary", False),
    Rule("layers.{i}.self_attn.k_proj.bias", "blk.{i}.attn_k.bias", ("K",), False, "rotary", False),
    Rule("layers.{i}.self_attn.v_proj.bias", "blk.{i}.attn_v.bias", ("K",), False, "copy", False),
    Rule("layers.{i}.self_attn.o_proj.bias", "blk.{i}.attn_output.bias", ("H",), False, "copy", False),
    Rule("layers.{i}.self_attn.q_norm.weight", "blk.{i}.attn_q_norm.weight", ("d",), False, "rotary", False),
    Rule("layers.{i}.self_attn.k_norm.weight", "blk.{i}.attn_k_norm.weight", ("d",), False, "rotary", False),
    Rule("layers.{i}.post_attention_layernorm.weight", "blk.{i}.ffn_norm.weight", ("H",)),
    Rule("layers.{i}.mlp.gate_proj.weight", "blk.{i}.ffn_gate.weight", ("F", "H")),
    Rule("layers.{i}.mlp.up_proj.weight", "blk.{i}.ffn_up.weight", ("F", "H")),
    Rule("layers.{i}.mlp.down_proj.weight", "blk.{i}.ffn_down.weight", ("H", "F")),
)

PREFIXES = ("module.", "model.", "eagle_module.", "draft_model.")
LEGACY = {f"aux_norm_{place}.weight": f"fc_norm.{i}.weight" for i, place in enumerate(("low", "mid", "high"))}

# Tensors that are no part of the network as it runs: pattern, reason.
DROPPED = (
    (r"t2d", "only checks d2t"),
    (r"(.*\.)?inv_freq", "RoPE is computed from the configuration"),
    (r"verifier_.*", "a copy from the target, used in training only"),
    (r"(optimizer|lr_scheduler|ema)\..*", "training state"),
    (r"layers\.\d+\.self_attn\.[kv]_(proj\.)?(output_)?scale", "scale of another engine's quantized KV cache"),
)

# Kinds of draft that are no EAGLE-3 head as described, by a tensor that only they have: pattern, reason.
REFUSED = (
    (r".*\.(kv_a_proj_with_mqa|kv_b_proj|q_a_proj)\..*", "its attention is MLA"),
    (r".*\.mlp\.(experts\..*|gate\.weight|shared_expert.*)", "its MLP is a mixture of experts"),
    (r"(.*\.)?mask_hidden.*", "it is a P-EAGLE (parallel drafting) head"),
    (r"(.*\.)?(eh_proj|enorm|hnorm)\..*", "it is an MTP head (eh_proj), or projects before attention"),
    (r"parallel_draft_heads\..*", "it drafts with parallel heads"),
    (
        r".*\.(weight_scale(_inv|_2)?|input_scale|weight_packed|qweight|scales|qzeros|g_idx)",
        "its weights are quantized",
    ),
    (r".*\.mlp\.(gate|up|down)_proj\.bias", "its MLP has biases"),
    (r"lm_head\.bias", "its output has a bias"),
    (r".*\.self_attn\.sinks", "its attention has sinks"),
)


def canonical(name: str) -> str:
    """The name in the table's spelling: without prefixes, the one layer of `midlayer.` numbered."""
    while prefix := next((p for p in PREFIXES if name.startswith(p)), None):
        name = name[len(prefix) :]
    if name.startswith("midlayer."):
        name = "layers.0." + name[len("midlayer.") :]
    return LEGACY.get(name, name)


def match(patterns: tuple[tuple[str, str], ...], name: str) -> str | None:
    """The reason of the first pattern that the whole name matches."""
    return next((reason for pattern, reason in patterns if re.fullmatch(pattern, name)), None)


def expand(n_layer: int, n_aux: int) -> dict[str, tuple[Rule, int]]:
    """Canonical name -> (rule with names filled in, layer) of every tensor that a draft of this size may have."""
    table: dict[str, tuple[Rule, int]] = {}

    def add(rule: Rule, layer: int, k: int = 0) -> None:
        source, gguf = (text.format(i=layer, k=k) for text in (rule.source, rule.gguf))
        table[source] = (Rule(source, gguf, rule.shape, rule.required, rule.transform, rule.stock), layer)

    for rule in MODEL:
        for k in range(n_aux if "{k}" in rule.source else 1):
            add(rule, 0, k)
    for layer in range(n_layer):
        for rule in (*(FIRST_LAYER if layer == 0 else ()), *LAYER):
            add(rule, layer)
    return table
