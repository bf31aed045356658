"""Speed and memory of the target converter beside llama.cpp's own, on a synthetic checkpoint of Qwen3.5's shape.

python bench/studies/convert_target.py --gigabytes 4 --llama-cpp PATH_TO_SOURCE [--outtype bf16 q8_0 f16] [--json]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from math import prod
from pathlib import Path

from converters import run, write_tokenizer, write_weights

OURS = """
import sys
from llama_eagle.convert.targets import TargetOptions, convert_target
convert_target(sys.argv[1], sys.argv[2], TargetOptions(outtype=sys.argv[3]))
"""
# llama.cpp's converter looks its tokenizers up by hash, and knows no synthetic one: it is told the name.
THEIRS = """
import runpy, sys
root = sys.argv[1]
sys.path[:0] = [root, root + "/gguf-py"]
from conversion import base
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "qwen35"
source, output, outtype = sys.argv[2:]
sys.argv = [root + "/convert_hf_to_gguf.py", source, "--outfile", output, "--outtype", outtype, "--no-mtp"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

WIDTH, FF, VOCAB, HEADS, KV_HEADS, HEAD = 2048, 6144, 65536, 8, 2, 256
LINEAR = {
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}


def block_shapes(i: int) -> dict[str, tuple[int, ...]]:
    """Tensors of block i: three Gated DeltaNet blocks, then one with full attention."""
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (WIDTH,),
        "post_attention_layernorm.weight": (WIDTH,),
        "mlp.gate_proj.weight": (FF, WIDTH),
        "mlp.up_proj.weight": (FF, WIDTH),
        "mlp.down_proj.weight": (WIDTH, FF),
    }
    if i % 4 == 3:
        attention: dict[str, tuple[int, ...]] = {
            "q_proj.weight": (2 * HEADS * HEAD, WIDTH),
            "k_proj.weight": (KV_HEADS * HEAD, WIDTH),
            "v_proj.weight": (KV_HEADS * HEAD, WIDTH),
            "o_proj.weight": (WIDTH, HEADS * HEAD),
            "q_norm.weight": (HEAD,),
            "k_norm.weight": (HEAD,),
        }
        return shapes | {f"self_attn.{name}": shape for name, shape in attention.items()}
    linear: dict[str, tuple[int, ...]] = {
        "in_proj_qkv.weight": (8192, WIDTH),
        "in_proj_z.weight": (4096, WIDTH),
        "in_proj_a.weight": (32, WIDTH),
        "in_proj_b.weight": (32, WIDTH),
        "conv1d.weight": (8192, 1, 4),
        "A_log": (32,),
        "dt_bias": (32,),
        "norm.weight": (128,),
        "out_proj.weight": (WIDTH, 4096),
    }
    return shapes | {f"linear_attn.{name}": shape for name, shape in linear.items()}


def shapes(n_layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """All tensors, in the order of the file."""
    yield "model.embed_tokens.weight", (VOCAB, WIDTH)
    yield "model.norm.weight", (WIDTH,)
    yield "lm_head.weight", (VOCAB, WIDTH)
    for i in range(n_layer):
        for name, shape in block_shapes(i).items():
            yield f"model.layers.{i}.{name}", shape


def n_bytes(n_layer: int) -> int:
    return sum(2 * prod(shape) for _, shape in shapes(n_layer))


def make_checkpoint(folder: Path, size: int) -> None:
    """A checkpoint of about `size` bytes."""
    per_group = n_bytes(8) - n_bytes(4)
    n_layer = max(4, round((size - n_bytes(4)) / per_group) * 4 + 4)
    config = {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "intermediate_size": FF,
        "num_hidden_layers": n_layer,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "layer_types": ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(n_layer)],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
        **LINEAR,
    }
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder, VOCAB - 4096, "qwen35")
    write_weights(folder / "model.safetensors", dict(shapes(n_layer)))


def commands(source: Path, output: Path, outtype: str, llama_cpp: Path) -> dict[str, list[str]]:
    return {
        "ours": [sys.executable, "-c", OURS, str(source), str(output), outtype],
        "llama_cpp": [sys.executable, "-c", THEIRS, str(llama_cpp), str(source), str(output), outtype],
    }


if __name__ == "__main__":
    run(__doc__, 4.0, make_checkpoint, commands)
