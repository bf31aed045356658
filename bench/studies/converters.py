"""What the two benchmarks of converters share: the files of a made checkpoint, and the comparison.

Both converters run as processes of their own, alternating, on a checkpoint in the page cache; the best of the runs
counts. Time is of the whole process, start-up included; memory is its peak resident set, mapped input pages included.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from llama_eagle.convert.tokenizer import PRE_TOKENIZERS

PIECE = 1 << 20  # weights written at once: the peak that the kernel reports for a child begins with its parent's
SPLITS = {name: split for split, name in PRE_TOKENIZERS.items()}


# (source, output, outtype, llama.cpp's source tree) -> tool -> command
Commands = Callable[[Path, Path, str, Path], dict[str, list[str]]]


@dataclass(frozen=True)
class Usage:
    """Of a process. peak_bytes: its largest resident set."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int


def measure(command: list[str], output: Path) -> Usage:
    """Runs a converter and removes what it wrote; its last words end the program if it fails."""
    start = time.perf_counter()
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(command, stdout=log, stderr=log)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - start
        log.seek(0)
        if status or not output.is_file():
            raise SystemExit(log.read().decode(errors="replace")[-2000:])
    output.unlink()
    return Usage(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def compare(commands: dict[str, list[str]], output: Path, runs: int, n_bytes: int) -> dict[str, Any]:
    """Tool -> its best time and largest memory; and `speedup`, llama.cpp's time over ours. n_bytes: of the source."""
    measured: dict[str, list[Usage]] = {tool: [] for tool in commands}
    for _ in range(runs):
        for tool, command in commands.items():
            measured[tool].append(measure(command, output))
    row: dict[str, Any] = {}
    for tool, usages in measured.items():
        seconds = min(usage.seconds for usage in usages)
        row[tool] = {
            "seconds": round(seconds, 2),
            "cpu_seconds": round(min(usage.cpu_seconds for usage in usages), 2),
            "gigabytes_per_s": round(n_bytes / 1e9 / seconds, 2),
            "peak_resident_mb": round(max(usage.peak_bytes for usage in usages) / 1e6),
        }
    return {**row, "speedup": round(row["llama_cpp"]["seconds"] / row["ours"]["seconds"], 2)}


def run(description: str, gigabytes: float, make: Callable[[Path, int], None], commands: Commands) -> None:
    """The program. `make(folder, n_bytes)` writes a checkpoint of about that size; `commands`: ours and llama_cpp."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=gigabytes)
    parser.add_argument("--outtype", nargs="+", default=["bf16", "q8_0", "f16"])
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--llama-cpp", type=Path, required=True, help="llama.cpp's source, with convert_hf_to_gguf.py")
    parser.add_argument("--folder", type=Path, help="where to work; needs 2.2 times the size; default: a temporary one")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    rows = []
    try:
        make(folder, int(arguments.gigabytes * 1e9))
        size, output = (folder / "model.safetensors").stat().st_size, folder / "out.gguf"
        for outtype in arguments.outtype:
            row = compare(commands(folder, output, outtype, arguments.llama_cpp), output, arguments.runs, size)
            rows.append({"outtype": outtype, "gigabytes": size / 1e9, **row})
    finally:
        shutil.rmtree(folder)
    if arguments.json:
        print(json.dumps({"rows": rows}))
        return
    for row in rows:
        print(f"{row['outtype']}, {row['gigabytes']:.2f} GB: {row['speedup']} times as fast")
        for tool in ("ours", "llama_cpp"):
            r = row[tool]
            speed = f"{r['seconds']} s ({r['cpu_seconds']} s of CPU), {r['gigabytes_per_s']} GB/s"
            print(f"  {tool:9} {speed}, peak {r['peak_resident_mb']} MB")


def write_weights(path: Path, shapes: Mapping[str, tuple[int, ...]], ids: Mapping[str, np.ndarray] = {}) -> None:
    """A safetensors file of random BF16 tensors around zero, and of arrays of int64 after them."""
    tensors = [(name, shape, "BF16", 2) for name, shape in shapes.items()]
    tensors += [(name, values.shape, "I64", 8) for name, values in ids.items()]
    header, end = {}, 0
    for name, shape, dtype, size in tensors:
        begin, end = end, end + size * prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    values = np.random.default_rng(0).standard_normal(PIECE, dtype=np.float32) * 0.02
    pool = (values.view(np.uint32) >> 16).astype(np.uint16)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            for left in range(prod(shape), 0, -PIECE):
                file.write(pool[:left].tobytes())
        for values in ids.values():
            file.write(values.astype("<i8").tobytes())


def write_tokenizer(folder: Path, n_tokens: int, split: str) -> None:
    """A byte-level BPE vocabulary whose merges join neighbours. split: a name in SPLITS."""
    alphabet = [chr(0x100 + i) for i in range(256)]
    tokens = list(alphabet)
    merges = []
    for i in range(n_tokens - 256):
        left, right = alphabet[i // 256 % 256], alphabet[i % 256]
        merges.append([tokens[256 + i - 65536] if i >= 65536 else left, right])
        tokens.append("".join(merges[-1]))
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    parts = [{"type": "Split", "pattern": {"Regex": SPLITS[split]}, "behavior": "Isolated", "invert": False}, level]
    vocab = {token: i for i, token in enumerate(tokens)}
    content = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": parts},
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
