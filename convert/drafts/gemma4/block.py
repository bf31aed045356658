"""Gemma 4's block in the drafts of DeepSpec, as far as EAGLE-3 and DSpark share it.

Sources: Gemma4Eagle3Model and Gemma4DSparkModel of DeepSpec, gemma.py of llama.cpp's converter.
"""

from __future__ import annotations

from llama_eagle.convert import rows
from llama_eagle.convert.source.weights import Weights
from llama_eagle.convert.table import Row
from llama_eagle.errors import ConversionError

EAGLE3, DSPARK = "Gemma4Eagle3Model", "Gemma4DSparkModel"
ACTIVATION = "gelu_pytorch_tanh"
NORMS = (
    rows.norm("input_layernorm.weight", "attn_norm.weight", "embd"),
    rows.norm("post_attention_layernorm.weight", "post_attention_norm.weight", "embd"),
    rows.norm("pre_feedforward_layernorm.weight", "ffn_norm.weight", "embd"),
    rows.norm("post_feedforward_layernorm.weight", "post_ffw_norm.weight", "embd"),
    Row("layer_scalar", "layer_output_scale.weight", ("1",)),
)


def stored_heads(weights: Weights) -> tuple[int, int]:
    """Return the size of a head and the number of key-value heads, by the tensors.

    config.json names those with and without a window, under keys that depend on the version of transformers.
    """
    names = ("layers.0.self_attn.k_norm.weight", "layers.0.self_attn.k_proj.weight")
    for name in names:
        if name not in weights:
            raise ConversionError(f"{name} is missing; download again")
    head, n_rows = (weights.shape(name)[0] for name in names)
    if not head or head % 2 or n_rows % head:
        raise ConversionError(f"{names[1]} has {n_rows} rows, which are not whole heads of {head}, as in {names[0]}")
    return head, n_rows // head
