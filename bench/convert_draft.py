"""Draft conversion side by side with llama.cpp's converter: bytes per second and peak memory.

    python -m llama_eagle.bench.convert_draft --llama-cpp PATH [--gigabytes 1] [--repeat 3] [--json]

PATH is a llama.cpp source tree with convert_hf_to_gguf.py (it needs torch and transformers). Both read the same made
draft in the shape of a published one and write the same GGUF layout; runs alternate. Time is of the whole process,
start-up included, with the source in the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM = 4096, 14336, 32, 8, 128
N_VOCAB, N_LAYER = 151936, 36
PIECE = 1 << 22
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Upstream names its pre-tokenizer by a hash of published tokenizers; the made one has none.
UPSTREAM = """
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


@dataclass(frozen=True)
class Run:
    """n_bytes: of the file written. peak_bytes: largest resident set of the process, mapped pages included."""

    tool: str
    outtype: str
    seconds: float
    n_bytes: int
    peak_bytes: int


def draft_shapes(gigabytes: float) -> dict[str, tuple[int, ...]]:
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
    left = gigabytes * 1e9 / 2 - sum(int(np.prod(shape)) for shape in shapes.values())
    shapes["lm_head.weight"] = (min(N_VOCAB - 1, max(1024, int(left / HIDDEN))), HIDDEN)
    return shapes


def make_draft(folder: Path, gigabytes: float) -> Path:
    shapes = draft_shapes(gigabytes)
    n_draft = shapes["lm_head.weight"][0]
    folder.mkdir()
    _save(folder / "model.safetensors", shapes)
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
    return folder


def _save(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """BF16 numbers of random sign and mantissa around 2^-6, and a d2t that names the last tokens.

    Written in small pieces: the peak memory that the kernel reports for a child begins with that of its parent.
    """
    n_draft = shapes["lm_head.weight"][0]
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    header["d2t"] = {"dtype": "I64", "shape": [n_draft], "data_offsets": [end, end + 8 * n_draft]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = np.random.default_rng(0)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for left in range(end // 2, 0, -PIECE):
            bits = random.integers(0, 1 << 16, min(left, PIECE), dtype=np.uint16)
            file.write((bits & 0x807F | 0x3C00).tobytes())
        file.write(np.full(n_draft, N_VOCAB - n_draft, np.int64).tobytes())


def make_target(folder: Path) -> Path:
    """Configuration and tokenizer of a target: a byte-level BPE with one merge, padded to a real vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    vocab = {text: i for i, text in enumerate([*sorted(alphabet), "th"])}
    split = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "post_processor": level,
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocab, "merges": ["t h"]},
    }
    config: dict[str, Any] = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": HIDDEN}
    config |= {"num_hidden_layers": N_LAYER, "vocab_size": N_VOCAB}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return folder


def measure(tool: str, outtype: str, command: list[str], output: Path) -> Run:
    """Runs a converter and removes what it wrote."""
    start = time.perf_counter()
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(command, stdout=log, stderr=log)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - start
        log.seek(0)
        if status != 0:
            raise SystemExit(f"{tool} failed:\n{log.read().decode(errors='replace')[-2000:]}")
    n_bytes = output.stat().st_size
    output.unlink()
    return Run(tool, outtype, seconds, n_bytes, usage.ru_maxrss * 1024)


def compare(llama_cpp: Path, gigabytes: float, repeat: int, outtypes: list[str]) -> list[Run]:
    runs = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draft, target = make_draft(folder / "draft", gigabytes), make_target(folder / "target")
        output = folder / "out.gguf"
        script = str(llama_cpp / "convert_hf_to_gguf.py")
        for outtype in outtypes:
            upstream = [sys.executable, "-c", UPSTREAM, str(llama_cpp), script, str(draft), "--outfile", str(output)]
            upstream += ["--outtype", outtype, "--target-model-dir", str(target)]
            ours = [sys.executable, "-c", OURS, str(draft), str(target), str(output), outtype]
            for _ in range(repeat):
                runs.append(measure("llama.cpp", outtype, upstream, output))
                runs.append(measure("llama-eagle", outtype, ours, output))
    return runs


def show(runs: list[Run], outtype: str, source_bytes: float) -> None:
    best = {}
    for tool in ("llama.cpp", "llama-eagle"):
        mine = [run for run in runs if (run.tool, run.outtype) == (tool, outtype)]
        best[tool] = min(run.seconds for run in mine)
        peak = max(run.peak_bytes for run in mine) / 2**20
        rate = source_bytes / best[tool] / 1e6
        print(f"{outtype:5} {tool:12} {best[tool]:7.2f} s {rate:7.0f} MB/s of source, peak {peak:6.0f} MiB")
    print(f"{outtype:5} ratio        {best['llama.cpp'] / best['llama-eagle']:7.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-cpp", type=Path, required=True)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--outtypes", default="bf16,f16,q8_0")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    outtypes = options.outtypes.split(",")
    runs = compare(options.llama_cpp, options.gigabytes, options.repeat, outtypes)
    if options.json:
        print(json.dumps([asdict(run) for run in runs]))
    for outtype in [] if options.json else outtypes:
        show(runs, outtype, options.gigabytes * 1e9)


if __name__ == "__main__":
    main()
