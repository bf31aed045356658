"""Speed and memory of the target converter beside llama.cpp's own, on a synthetic checkpoint of Qwen3.5's shape.

    python bench/convert_target.py --gigabytes 4 --llama-cpp PATH_TO_SOURCE [--outtype bf16 q8_0 f16] [--json]

Both converters run as processes of their own, alternating, on a checkpoint in the page cache; the best of the runs
counts. Memory is the peak resident set of the process, mapped input pages included.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

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
    return sum(2 * int(np.prod(shape)) for _, shape in shapes(n_layer))


def write_weights(path: Path, n_layer: int) -> None:
    """Random BF16 weights around zero, one tensor at a time."""
    header: dict[str, Any] = {}
    offset = 0
    for name, shape in shapes(n_layer):
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    values = np.random.default_rng(0).standard_normal(1 << 22, dtype=np.float32) * 0.02
    pool = (values.view(np.uint32) >> 16).astype(np.uint16)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for _, shape in shapes(n_layer):
            left = int(np.prod(shape))
            while left:
                file.write(pool[: min(left, pool.size)].tobytes())
                left -= min(left, pool.size)


def write_tokenizer(folder: Path) -> None:
    """A byte-level BPE vocabulary of VOCAB - 4096 tokens whose merges join neighbours."""
    alphabet = [chr(0x100 + i) for i in range(256)]
    tokens = list(alphabet)
    merges = []
    for i in range(VOCAB - 4096 - 256):
        left, right = alphabet[i // 256 % 256], alphabet[i % 256]
        merges.append([tokens[256 + i - 65536] if i >= 65536 else left, right])
        tokens.append("".join(merges[-1]))
    vocab = {token: i for i, token in enumerate(tokens)}
    split = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
        r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    parts = [
        {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
    ]
    model = {"type": "BPE", "vocab": vocab, "merges": merges}
    content = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": parts},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": model,
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


def make_checkpoint(folder: Path, size: int) -> int:
    """A checkpoint of about `size` bytes; returns its exact size."""
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
    write_tokenizer(folder)
    write_weights(folder / "model.safetensors", n_layer)
    return n_bytes(n_layer)


def measure(command: list[str], output: Path) -> tuple[float, float, int]:
    """Seconds, processor seconds and peak resident bytes of a process; its output file is checked and removed."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - start
    if status or not output.is_file():
        raise SystemExit((process.stderr.read() if process.stderr else b"").decode()[-2000:])
    output.unlink()
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def compare(folder: Path, size: int, outtype: str, runs: int, llama_cpp: Path) -> dict[str, Any]:
    """Best time and largest memory of both converters for one type."""
    output = folder / "out.gguf"
    commands = {
        "ours": [sys.executable, "-c", OURS, str(folder), str(output), outtype],
        "llama_cpp": [sys.executable, "-c", THEIRS, str(llama_cpp), str(folder), str(output), outtype],
    }
    results: dict[str, list[tuple[float, float, int]]] = {name: [] for name in commands}
    for _ in range(runs):
        for name, command in commands.items():
            results[name].append(measure(command, output))
    row: dict[str, Any] = {"outtype": outtype, "gigabytes": size / 1e9}
    for name, measured in results.items():
        seconds = min(m[0] for m in measured)
        row[name] = {
            "seconds": round(seconds, 2),
            "cpu_seconds": round(min(m[1] for m in measured), 2),
            "gigabytes_per_s": round(size / 1e9 / seconds, 2),
            "peak_resident_mb": round(max(m[2] for m in measured) / 1e6),
        }
    row["speedup"] = round(row["llama_cpp"]["seconds"] / row["ours"]["seconds"], 2)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--outtype", nargs="+", default=["bf16", "q8_0", "f16"])
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--llama-cpp", type=Path, required=True, help="llama.cpp's source, with convert_hf_to_gguf.py")
    parser.add_argument("--folder", type=Path, help="where to work; needs 2.2 times the size; default: a temporary one")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        size = make_checkpoint(folder, int(arguments.gigabytes * 1e9))
        largest = 2 * VOCAB * WIDTH
        rows = [compare(folder, size, t, arguments.runs, arguments.llama_cpp) for t in arguments.outtype]
    finally:
        shutil.rmtree(folder)
    if arguments.json:
        print(json.dumps({"largest_tensor_mb": round(largest / 1e6), "rows": rows}))
        return
    for row in rows:
        print(f"{row['outtype']}, {row['gigabytes']:.2f} GB: {row['speedup']} times as fast")
        for name in ("ours", "llama_cpp"):
            r = row[name]
            speed = f"{r['seconds']} s ({r['cpu_seconds']} s of CPU), {r['gigabytes_per_s']} GB/s"
            print(f"  {name:9} {speed}, peak {r['peak_resident_mb']} MB")


if __name__ == "__main__":
    main()
