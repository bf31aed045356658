"""Speed and memory of the draft converter beside llama.cpp's own, on a made draft in the shape of a published one.

    python bench/studies/convert_draft.py --llama-cpp PATH_TO_SOURCE [--gigabytes 1] [--outtype bf16 q8_0 f16] [--json]

llama.cpp's needs torch and transformers. Both write the same GGUF layout.
"""

from __future__ import annotations

import json
import sys
from math import prod
from pathlib import Path

import numpy as np
from converters import run, write_tokenizer, write_weights

HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM = 4096, 14336, 32, 8, 128
N_VOCAB, N_LAYER = 151936, 36

# Upstream names its pre-tokenizer by a hash of published tokenizers; the made one has none.
THEIRS = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
from conversion.base import TextModel
TextModel.get_vocab_base_pre = lambda self, tokenizer: "qwen2"
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
OURS = """
import sys
from llama_eagle.convert.drafts import DraftOptions, convert_draft
convert_draft(*sys.argv[1:4], DraftOptions(outtype=sys.argv[4]))
"""


def draft_shapes(n_bytes: int) -> dict[str, tuple[int, ...]]:
    """BF16 matrices of about this size in all; the draft vocabulary takes up what the others leave."""
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (HIDDEN, 3 * HIDDEN),
        "midlayer.self_attn.q_proj.weight": (q, 2 * HIDDEN),
        "midlayer.self_attn.k_proj.weight": (kv, 2 * HIDDEN),
        "midlayer.self_attn.v_proj.weight": (kv, 2 * HIDDEN),
        "midlayer.self_attn.o_proj.weight": (HIDDEN, q),
        "midlayer.mlp.gate_proj.weight": (FFN, HIDDEN),
        "midlayer.mlp.up_proj.weight": (FFN, HIDDEN),
        "midlayer.mlp.down_proj.weight": (HIDDEN, FFN),
        **{f"midlayer.{n}.weight": (HIDDEN,) for n in ("input_layernorm", "hidden_norm", "post_attention_layernorm")},
        "norm.weight": (HIDDEN,),
    }
    left = n_bytes / 2 - sum(prod(shape) for shape in shapes.values())
    shapes["lm_head.weight"] = (min(N_VOCAB - 1, max(1024, int(left / HIDDEN))), HIDDEN)
    return shapes


def make_draft(folder: Path, n_bytes: int) -> None:
    """A draft of about `n_bytes`, and its target's configuration in a folder of its own."""
    shapes = draft_shapes(n_bytes)
    n_draft = shapes["lm_head.weight"][0]
    d2t = np.full(n_draft, N_VOCAB - n_draft)  # names the last tokens
    write_weights(folder / "model.safetensors", shapes, {"d2t": d2t})
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "num_hidden_layers": 1,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "hidden_act": "silu",
        "vocab_size": N_VOCAB,
        "draft_vocab_size": n_draft,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    make_target(folder / "target")


def make_target(folder: Path) -> None:
    """Configuration and tokenizer of a target, its vocabulary padded to a real one's size."""
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": HIDDEN}
    config |= {"num_hidden_layers": N_LAYER, "vocab_size": N_VOCAB}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder, 257, "qwen2")


def commands(source: Path, output: Path, outtype: str, llama_cpp: Path) -> dict[str, list[str]]:
    target = str(source / "target")
    theirs = [sys.executable, "-c", THEIRS, str(llama_cpp), str(llama_cpp / "convert_hf_to_gguf.py"), str(source)]
    return {
        "ours": [sys.executable, "-c", OURS, str(source), target, str(output), outtype],
        "llama_cpp": [*theirs, "--outfile", str(output), "--outtype", outtype, "--target-model-dir", target],
    }


if __name__ == "__main__":
    run(__doc__, 1.0, make_draft, commands)
