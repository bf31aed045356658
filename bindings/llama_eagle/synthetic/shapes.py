"""Shapes of constructed pairs and their config.json files."""

from __future__ import annotations

import dataclasses
from typing import Any

from llama_eagle.synthetic.cycle import SPECIALS, Cycle

BLOCK_ROPE = 100.0  # RoPE base of a DFlash draft whose heads select a distance


@dataclasses.dataclass(frozen=True)
class Experts:
    """Experts of each block of a mixture.

    n: number. n_used: number in use per row. ffn, shared_ffn: widths of one and of the shared one.
    """

    n: int
    n_used: int
    ffn: int
    shared_ffn: int


@dataclasses.dataclass(frozen=True)
class Shape:
    """Dimensions of a pair. The target repeats 3 gated-delta-net blocks and one full-attention block.

    experts: the target is a mixture, and `ffn` is that of the draft only.
    """

    n_vocab: int
    n_draft_vocab: int
    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    linear_k_heads: int
    linear_v_heads: int
    draft_heads: int
    draft_kv_heads: int
    context: int = 262144
    linear_head_dim: int = 128
    draft_head_dim: int = 128
    conv_kernel: int = 4
    experts: Experts | None = None

    @property
    def mrope_section(self) -> list[int]:
        """Interleaved sections over all rotary pairs (a quarter of the head), without a rest."""
        pairs = self.head_dim // 8
        return [-(-pairs // 3), -(-(pairs - 1) // 3), pairs // 3]

    @property
    def aux_layer_ids(self) -> list[int]:
        """Boundaries (residual entering block i) that the draft reads."""
        return [2, self.layers // 2, self.layers - 3]

    @property
    def block_layer_ids(self) -> list[int]:
        """Boundaries that a DFlash draft reads."""
        return [2 + i * (self.layers - 5) // 4 for i in range(5)] if self.layers > 8 else self.aux_layer_ids


SHAPES = {
    "tiny": Shape(4096, 2048, 256, 512, 8, 4, 2, 64, 2, 4, 4, 2, context=32768),
    "small": Shape(8192, 4096, 512, 1536, 16, 8, 2, 64, 4, 8, 8, 2, context=32768),
    "0.8b": Shape(248320, 32000, 1024, 3584, 24, 8, 2, 256, 16, 16, 16, 4),
    "2b": Shape(248320, 32000, 2048, 6144, 24, 8, 2, 256, 16, 16, 16, 4),
    "4b": Shape(248320, 32000, 2560, 9216, 32, 16, 4, 256, 16, 32, 32, 8),
    "9b": Shape(248320, 32000, 4096, 12288, 32, 16, 4, 256, 16, 32, 32, 8),
    **{  # Qwen3.5-35B-A3B has 40 blocks; fewer fit into less memory
        f"35b-a3b-{n}": Shape(
            248320, 32000, 2048, 6144, n, 16, 2, 256, 16, 32, 16, 4, experts=Experts(256, 8, 512, 512)
        )
        for n in (8, 16, 24, 32, 40)
    },
}


def target_config(shape: Shape, cycle: Cycle) -> dict[str, Any]:
    """Return config.json as transformers writes it for Qwen3_5ForCausalLM, or Qwen3_5MoeForCausalLM for a mixture."""
    kinds = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(shape.layers)]
    rope = {
        "rope_type": "default",
        "rope_theta": 10_000_000,
        "partial_rotary_factor": 0.25,
        "mrope_section": shape.mrope_section,
        "mrope_interleaved": True,
    }
    kind = "Qwen3_5Moe" if shape.experts else "Qwen3_5"
    return {
        "architectures": [f"{kind}ForCausalLM"],
        "model_type": "qwen3_5_moe_text" if shape.experts else "qwen3_5_text",
        "dtype": "bfloat16",
        "vocab_size": shape.n_vocab,
        "hidden_size": shape.hidden,
        **_feed_forward(shape),
        "num_hidden_layers": shape.layers,
        **({"mtp_num_hidden_layers": 1} if cycle.mtp else {}),
        "layer_types": kinds,
        "full_attention_interval": 4,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "linear_num_key_heads": shape.linear_k_heads,
        "linear_num_value_heads": shape.linear_v_heads,
        "linear_key_head_dim": shape.linear_head_dim,
        "linear_value_head_dim": shape.linear_head_dim,
        "linear_conv_kernel_dim": shape.conv_kernel,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": shape.context,
        "rope_parameters": rope,
        "tie_word_embeddings": False,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": cycle.special_ids[SPECIALS[2]],
        "pad_token_id": cycle.special_ids[SPECIALS[0]],
    }


def _feed_forward(shape: Shape) -> dict[str, Any]:
    if shape.experts is None:
        return {"intermediate_size": shape.ffn}
    return {
        "num_experts": shape.experts.n,
        "num_experts_per_tok": shape.experts.n_used,
        "moe_intermediate_size": shape.experts.ffn,
        "shared_expert_intermediate_size": shape.experts.shared_ffn,
    }


def draft_config(shape: Shape, cycle: Cycle) -> dict[str, Any]:
    """Return config.json as SpecForge writes it, with the residual taken after hidden_norm."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": shape.n_vocab,
        "draft_vocab_size": shape.n_draft_vocab,
        "hidden_size": shape.hidden,
        "target_hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": 1,
        "num_attention_heads": shape.draft_heads,
        "num_key_value_heads": shape.draft_kv_heads,
        "head_dim": shape.draft_head_dim,
        "attention_bias": False,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": shape.context,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "use_cache": True,
        "norm_before_residual": True,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [boundary - 1 for boundary in shape.aux_layer_ids],
            "use_aux_hidden_state": True,
        },
        "eos_token_id": cycle.special_ids[SPECIALS[2]],
        "pad_token_id": cycle.special_ids[SPECIALS[0]],
    }


def block_config(shape: Shape, mask: int, n_layer: int, block_size: int) -> dict[str, Any]:
    """Return config.json as z-lab writes it for a DFlash draft. `mask`: id of the mask token."""
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "vocab_size": shape.n_vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": n_layer,
        "layer_types": ["full_attention"] * n_layer,
        "num_attention_heads": shape.draft_heads,
        "num_key_value_heads": shape.draft_kv_heads,
        "head_dim": shape.draft_head_dim,
        "attention_bias": False,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": shape.context,
        "rope_theta": BLOCK_ROPE,
        "tie_word_embeddings": False,
        "block_size": block_size,
        "dflash_config": {
            "mask_token_id": mask,
            "target_layer_ids": [boundary - 1 for boundary in shape.block_layer_ids],
        },
    }
